//! Replays of trace files from bytes, with the RAM that they get by themselves.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quire_fuzz::trace_replay(bytes, false));
