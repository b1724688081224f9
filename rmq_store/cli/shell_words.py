"""Advice of errors and warnings in the words of the shell: the library names its own and Spark's options."""

from __future__ import annotations

import re

import click

_OF_ANOTHER = "rmqstore cat --skip-damaged leaves it out"
_SHELL = {
    "Read with source=commitlog, or rebuild": "Rebuild",
    "Read with source=commitlog to get the message, or rebuild": "Rebuild",
    "Read with source=commitlog to get the message": "rmqstore salvage copies the message",
    "Read with source=commitlog, which numbers messages as their records say": "rmqstore verify compares "
    "all entries with their records",
    "Read them with source=commitlog, or copy": "Copy",
    ", or read the log itself with source=commitlog": "",
    ", or read the log itself (source=commitlog in Spark, queues=False in Python)": "",
    "the log can be read (source=commitlog in Spark, queues=False in Python), and ": "",
    ", and source=commitlog reads them": "",
    "source=commitlog reads them": "rmqstore salvage copies them into a new store",
    "source=commitlog reads what the log has of it, readStream waits for its first message": "rmqstore "
    "rebuild lists in a new store what the log has of it",
    "source=commitlog in Spark, compacted=False in Python or rmqstore find": "rmqstore find",
    "source=commitlog and compacted=False have the messages": "rmqstore find has the messages",
    "compacted=False (Spark: compacted=false, cat and sql: --history)": "--history of cat and sql",
    "Spark with source=commitlog and mode=PERMISSIVE, MessageStore.open(path, queues=False)"
    ".read_log(), rmqstore salvage": "rmqstore salvage",
    "Read with on_damage to skip it": _OF_ANOTHER,  # or what `_OWN` has
    "Read with verifyQueue to check the entries against their records": "rmqstore verify compares all "
    "entries with their records",
    "Read with unwrapBatches=false and rawBody to get the stored bytes": "--raw --columns rawBody gives "
    "the stored bytes",
    "Read with smaller batches: batch_bytes and batch_rows limit them": "Print fewer columns",
    ", or let a stream continue with what is left with failOnDataLoss=false": "",
    ", or let a stream continue at the end of the log with failOnDataLoss=false": "",
    "or set failOnDataLoss=false": "or give --no-fail-on-data-loss",
    "failOnDataLoss=false reads": "--no-fail-on-data-loss reads",
    ", or the option brokerConf": "",
    ", or with option storageOptions": "",
    ", or append_to for an existing store": "",
    " on the driver": "",
}
_PHRASE = re.compile("|".join(map(re.escape, _SHELL)))


_OWN = {
    "--skip-damaged": "--skip-damaged leaves it out",
    "--mode": "--mode DROPMALFORMED leaves it out",
}
_ON_LOSS = "--no-fail-on-data-loss"
_ABOUT_LOSS = re.compile(rf"(?:; |, or give ){_ON_LOSS}[^;.]*")


def in_shell_words(text: str, command: click.Command | None = None) -> str:
    """A text of an error or a warning, with what the shell has in place of options of the library.

    Where the `command` that runs has an option itself, that is advised.
    """
    text = _PHRASE.sub(lambda found: _SHELL[found[0]], text)
    params = () if command is None else command.params
    options = {word for param in params for word in (*param.opts, *param.secondary_opts)}
    own = next((words for option, words in _OWN.items() if option in options), _OF_ANOTHER)
    return (text if _ON_LOSS in options else _ABOUT_LOSS.sub("", text)).replace(_OF_ANOTHER, own)
