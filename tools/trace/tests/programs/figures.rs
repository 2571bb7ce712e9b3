//! A program with many threads and a child.

use crate::shared::{PARENT_BYTES, THREADS};
use std::sync::Barrier;

/// Forty threads live at once and end; memory is held while another program runs, which is started as by
/// vfork.
pub(crate) fn has_threads_and_starts_a_program() {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| barrier.wait());
        }
    });
    let held = vec![1_u8; PARENT_BYTES];
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert_eq!(held[PARENT_BYTES / 2], 1);
}
