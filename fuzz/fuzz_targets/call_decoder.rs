//! Arguments of calls from bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quire_fuzz::call_decoder(bytes, false));
