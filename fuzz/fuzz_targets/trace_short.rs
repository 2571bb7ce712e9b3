//! Replays of trace files from bytes, with too little RAM.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quire_fuzz::trace_short(bytes, false));
