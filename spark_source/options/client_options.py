"""Options that only a client of a live broker has, with the reason why the source has none of
them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NO_CLIENT = "the source reads the files of a store and asks no broker"
_LIVE: Mapping[str, str] = {
    name.casefold(): why
    for names, why in (
        (
            "nameServer namesrv namesrvAddr nameServerAddr nameServerAddress endpoints proxyAddr "
            "kafka.bootstrap.servers bootstrap.servers",
            f"{_NO_CLIENT}: give the store's folder as path",
        ),
        (
            "consumerGroup group groupId kafka.group.id group.id groupIdPrefix instanceName clientId",
            f"{_NO_CLIENT}, and it commits no offset: give startingOffsets; table=groups has the "
            "committed offsets",
        ),
        (
            "accessKey secretKey accessKeyId secretAccessKey securityToken sessionToken aclEnable "
            "useTLS",
            f"{_NO_CLIENT}: anyone who can read the files can read the messages",
        ),
        (
            "pullTimeout pullTimeoutMs pullBatchSize pullMaxNumsPerQueue pullThresholdForQueue "
            "consumeTimeout pollTimeoutMs kafkaConsumer.pollTimeoutMs fetchOffset.numRetries "
            "fetchOffset.retryIntervalMs suspendTimeoutMillis consumeThreadMin consumeThreadMax",
            f"{_NO_CLIENT}: there is nothing to wait for; maxBytesPerPartition sets how much a "
            "task reads",
        ),
        (
            "messageModel consumeFromWhere",
            f"{_NO_CLIENT}: startingOffsets and startingTimestamp set where to start",
        ),
    )
    for name in names.split()
}


def why_only_a_client(name: str) -> str | None:
    """Why an option has no meaning here; None if it is not a client option."""
    why = _LIVE.get(name.casefold())
    if why is None and re.match(r"(?i)(kafka|rocketmq)\.", name):
        return f"{_NO_CLIENT}: client settings have no meaning here"
    return why
