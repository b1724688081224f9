"""Options that only a client of a live broker has, and why they mean nothing for its files."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NO_CLIENT = "the files of a store are read, and no broker is asked"
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
            f"{_NO_CLIENT}, and no offset is committed: give startingOffsets; what groups have "
            "committed is in table=groups",
        ),
        (
            "accessKey secretKey accessKeyId secretAccessKey securityToken sessionToken aclEnable "
            "useTLS",
            f"{_NO_CLIENT}: who may read the files may read the messages",
        ),
        (
            "pullTimeout pullTimeoutMs pullBatchSize pullMaxNumsPerQueue pullThresholdForQueue "
            "consumeTimeout pollTimeoutMs kafkaConsumer.pollTimeoutMs fetchOffset.numRetries "
            "fetchOffset.retryIntervalMs suspendTimeoutMillis consumeThreadMin consumeThreadMax",
            f"{_NO_CLIENT}: there is nothing to wait for; maxBytesPerPartition says how much a "
            "task reads",
        ),
        (
            "maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay",
            "a batch has no triggers: maxRecordsPerPartition and maxBytesPerPartition split it",
        ),
        (
            "messageModel consumeFromWhere",
            f"{_NO_CLIENT}: startingOffsets and startingTimestamp say where to begin",
        ),
    )
    for name in names.split()
}


def why_only_a_client(name: str) -> str | None:
    """Why an option means nothing here; None where it is not one of a client's."""
    why = _LIVE.get(name.casefold())
    if why is None and re.match(r"(?i)(kafka|rocketmq)\.", name):
        return f"{_NO_CLIENT}: client settings have no meaning here"
    return why
