#!/usr/bin/env python3
"""Holds a trace of `quire export perfetto` against Perfetto's published schema (`pip install perfetto`).

    scripts/check-perfetto.py TRACE

Each byte is of a field that the schema knows, each event is on a track that is described before it, and slices begin
and end in pairs."""

import collections
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


def unknown(message, at):
    """Fields that the schema does not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for field in UnknownFieldSet(message):
        yield f"{at}: field {field.field_number} is not in the schema"
    for descriptor, value in message.ListFields():
        if descriptor.message_type:
            for part in value if isinstance(value, (list, tuple)) or hasattr(value, "append") else [value]:
                yield from unknown(part, f"{at}.{descriptor.name}")


def main(path):
    trace, wrong = schema.Trace(), []
    trace.ParseFromString(open(path, "rb").read())
    wrong += unknown(trace, "trace")
    tracks, depth, before = {}, collections.Counter(), 0
    kinds, event = collections.Counter(), schema.TrackEvent
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            continue
        found = packet.track_event
        kinds[event.Type.Name(found.type)] += 1
        track = tracks.get(found.track_uuid)
        if track is None:
            wrong.append(f"an event is on track {found.track_uuid}, which nothing describes")
            continue
        if packet.timestamp < before:
            wrong.append("events are out of order")
        before = packet.timestamp
        if (found.type == event.TYPE_COUNTER) != track.HasField("counter"):
            wrong.append(f"an event of type {found.type} is on the track {track.name}")
        depth[found.track_uuid] += {event.TYPE_SLICE_BEGIN: 1, event.TYPE_SLICE_END: -1}.get(found.type, 0)
        if depth[found.track_uuid] not in (0, 1):
            wrong.append("slices do not begin and end in pairs")
    counters = sorted(track.name for track in tracks.values() if track.HasField("counter"))
    for name in ("Anonymous memory", "Resident memory", "Page tables", "Pages in swap", "Free blocks of 4 KiB"):
        if name not in counters:
            wrong.append(f"the counter {name} is missing")
    for kind in ("TYPE_COUNTER", "TYPE_INSTANT", "TYPE_SLICE_BEGIN"):
        if not kinds[kind]:
            wrong.append(f"there is no event {kind}")
    for line in wrong[:20]:
        print(f"{path}: {line}", file=sys.stderr)
    print(f"{path}: {len(tracks)} tracks, {len(counters)} of them counters; {dict(kinds)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
