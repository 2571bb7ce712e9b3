//! Memory calls from bytes, on four-level x86-64 tables.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quire_fuzz::memory_calls(bytes, false));
