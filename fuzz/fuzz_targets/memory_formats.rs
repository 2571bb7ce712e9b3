//! Memory calls from bytes, on other formats of page tables.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quire_fuzz::memory_formats(bytes, false));
