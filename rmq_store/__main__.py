"""The command `rmqstore` as `python -m rmq_store`."""

from rmq_store.cli.main import main

if __name__ == "__main__":
    main()
