//! What the fuzzers do with their input bytes.
//!
//! Each target is a function that panics when something is wrong, and depends on its bytes only: no clock, no
//! threads, no randomness. So an input that fails in the fuzzer fails everywhere, and the inputs that are
//! kept under `fuzz/corpus` are run by an ordinary test, without a fuzzer (`tests/corpus.rs`). The fuzzers
//! themselves are in `fuzz/`, a workspace of its own.
//!
//! # Modules, lowest first
//!
//! - `bytes`: the bytes of an input, taken one by one.
//! - `decoder`, `memory`, `trace`: the targets.

mod bytes;
mod decoder;
mod memory;
mod trace;

use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{X86_64Level4, X86_64Level5};

/// A target: its name, and what is done with the bytes. The second argument asks for a line on standard error
/// for each step.
pub type Target = (&'static str, fn(&[u8], bool));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("call_decoder", call_decoder),
    ("memory_calls", memory_calls),
    ("memory_formats", memory_formats),
    ("trace_reader", trace_reader),
    ("trace_replay", trace_replay),
    ("trace_short", trace_short),
];

/// The raw arguments of calls, as the recorder decodes them.
pub fn call_decoder(bytes: &[u8], show: bool) {
    decoder::run(bytes, show);
}

/// Memory calls, faults, forks and failures on a small machine with four-level x86-64 tables.
pub fn memory_calls(bytes: &[u8], show: bool) {
    memory::run::<X86_64Level4>(bytes, show);
}

/// Memory calls over other formats of page tables: the first byte says which.
pub fn memory_formats(bytes: &[u8], show: bool) {
    match bytes.split_first() {
        Some((format, rest)) if format % 4 == 0 => memory::run::<X86_64Level5>(rest, show),
        Some((_, rest)) => memory::run::<Invented3>(rest, show),
        None => {}
    }
}

/// Trace files, valid and damaged, read in both ways.
pub fn trace_reader(bytes: &[u8], show: bool) {
    trace::read(bytes, show);
}

/// Trace files, replayed with the RAM that they get by themselves.
pub fn trace_replay(bytes: &[u8], show: bool) {
    trace::replay(bytes, show);
}

/// Trace files, replayed with too little RAM.
pub fn trace_short(bytes: &[u8], show: bool) {
    trace::replay_short(bytes, show);
}
