"""`rmqstore`: the commands by name. Each module is imported when its command is called."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

import click

# numpy's linear algebra makes a thread a core when it is loaded, which no command needs and each
# would wait for.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rmq_store.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from rmq_store.errors import AccessError, StoreError, nearest
from rmq_store.malloc import keep_freed_memory

# Command -> the module of this package that defines it, and what it does.
COMMANDS = {
    "info": (
        "read_commands.info",
        "What store this is: files, range of the log, how it was closed.",
    ),
    "topics": ("read_commands.tables", "The topics, with their queues and messages."),
    "queues": (
        "read_commands.tables",
        "The queues: offsets, messages, what is not dispatched yet.",
    ),
    "lag": ("read_commands.tables", "How far consumer groups are behind, and what they lose next."),
    "usage": ("read_commands.usage", "Who fills the disk: bytes by topic, queue and day."),
    "table": ("read_commands.tables", "Any of the source's tables by name."),
    "cat": ("read_commands.cat", "Messages of a topic."),
    "find": ("read_commands.find", "Messages by topic, key, id, tag, property, time or text."),
    "tail": ("read_commands.tail", "The newest messages of a topic; -f waits for more."),
    "trace": (
        "read_commands.trace",
        "One message's life by key or id: retries, DLQ, delay, transaction.",
    ),
    "retention": (
        "write_commands.retention",
        "What the broker would delete now, and who loses by it.",
    ),
    "verify": ("read_commands.verify", "Whether log, queues, index and configuration agree."),
    "rebuild": (
        "write_commands.rebuild",
        "Queues and index made anew from the log, in a new store.",
    ),
    "salvage": ("write_commands.salvage", "The whole messages of a damaged log, into a new store."),
    "recover": (
        "write_commands.recover",
        "Make a store that was not closed cleanly whole, in place.",
    ),
    "offsets": (
        "write_commands.offsets",
        "Show or reset the offsets of a consumer group, broker down.",
    ),
}


class _Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = COMMANDS.get(cmd_name)
        if known is None:
            return None
        module = import_module(f"rmq_store.cli.{known[0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Told from the table: a list of commands imports none of them.
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}. {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 all is well; 1 something wrong was found, or nothing; 2 could not do it.",
)
@click.version_option(package_name="rmqstore", prog_name="rmqstore")
def rmqstore() -> None:
    """Look at the files of an Apache RocketMQ broker without the broker. Nothing is changed but by
    the commands that say so."""


def main() -> None:
    """The entry point: runs a command, tells errors in one line each, and ends quietly."""
    # As other tools of a shell: whoever reads the output and has seen enough ends us, quietly.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    keep_freed_memory()
    try:
        code = rmqstore.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        code = EXIT_INTERRUPTED
    except click.ClickException as wrong:
        wrong.show()
        code = wrong.exit_code
    except StoreError as error:
        click.echo(f"rmqstore: {error}", err=True)
        code = EXIT_FAILED
    except OSError as error:
        # Met where no one thought of it: a line that names the file all the same.
        path = None if error.filename is None else str(error.filename)
        reason = error.strerror or str(error)
        said = AccessError(
            path, reason=reason, advice="Check the permissions, the disk and the mount"
        )
        click.echo(f"rmqstore: {said}", err=True)
        code = EXIT_FAILED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
