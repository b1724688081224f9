"""rmqstore browse: a store in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.options import StoreArgs, flag, option
from rmq_store.cli.output import print_line
from rmq_store.errors import require_extra

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@command
def browse(
    at: StoreArgs = options.STORE,
    port: int = option(
        "--port",
        type=options.WholeNumber(min=0, max=65535),
        metavar="N",
        default=0,
        help="The port on 127.0.0.1; 0 takes one that is free.",
    ),
    no_open: bool = flag("--no-open", help="Print the address, and open no browser."),
    timeout: float = option(
        "--timeout",
        type=options.seconds,
        metavar="SECONDS",
        default=60.0,
        help="Stop a page or a query that takes longer.",
    ),
) -> None:
    """Show the store in a browser, until ctrl-C: topics, messages, groups, dead letters, SQL, plots.

    The pages are on this host alone, behind the token in the address that is printed, and change nothing.
    Over SSH the command for a tunnel is printed too. Needs pip install 'rmqstore[browse]'.

    Examples:
        rmqstore browse /data/store
        # on a server: the port that a tunnel leads to
        rmqstore browse /data/store --port 8077 --no-open
    """
    require_extra("browse")
    from rmq_store.browse.server import HOST, Dashboard, loopback_socket, serve
    from rmq_store.report.section import NamedStore

    named = NamedStore.of(at.store, at.broker_conf, at.broker_name)
    with loopback_socket(port) as listening:
        dashboard = Dashboard(at.open, named, timeout)
        port = listening.getsockname()[1]
        url = f"http://{HOST}:{port}{dashboard.path}"
        print_line(f"{url}  (ctrl-C ends it)")
        over_ssh = os.environ.get("SSH_CONNECTION")
        if over_ssh:
            # Our address and port as the client reached them stand behind the client's.
            _, _, host, ssh_port = (over_ssh.split() + [""] * 4)[:4]
            here = host if ssh_port in ("", "22") else f"{host} -p {ssh_port}"
            print_line(f"from your own host: ssh -N -L {port}:{HOST}:{port} {here}")
        # Without a window for a browser, Python starts one that takes the terminal.
        elif not no_open and (sys.platform == "darwin" or any(map(os.environ.get, _DISPLAYS))):
            webbrowser.open(url)
        sys.stdout.flush()
        serve(dashboard, listening)
