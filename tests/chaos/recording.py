"""What a run leaves for `tools/checker`: read from the stores themselves, without the product's own readers."""

import json

from kaicore.rules.events.envelope import Event


def event_line(event: Event) -> str:
    """An event as a line of `events.jsonl`."""
    return json.dumps(
        {
            "cluster": event.cluster,
            "position": event.position,
            "stream": event.stream,
            "version": event.version,
            "type": event.type,
            "schema": event.schema,
            "id": str(event.id),
            "actor": event.actor,
            "occurredAt": event.occurred_at,
            "recordedAt": event.recorded_at,
            "subject": event.subject,
            "cause": str(event.cause) if event.cause else None,
            "correlation": event.correlation,
            "body": bytes(event.body).decode(),
            "hash": event.hash.hex(),
        }
    )
