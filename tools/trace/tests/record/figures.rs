//! Figures of processes: each its own, and both sides of the same moment.

use super::{is_permitted, output};
use quire_trace::record::{RecordOptions, record};
use quire_trace::replay::{ProcessReport, Replay, ReplayOptions};
use std::sync::Barrier;

const THREADS: usize = 40;
const PARENT_BYTES: usize = 16 << 20;

/// Forty threads live at once and end; memory is held while another program runs, which is started as by
/// vfork.
#[test]
#[ignore = "a program that tests record"]
fn child_has_threads_and_starts_a_program() {
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

fn processes() -> Option<Vec<ProcessReport>> {
    let program = std::env::current_exe().unwrap().into_os_string();
    let name = "figures::child_has_threads_and_starts_a_program";
    let words = [name, "--exact", "--ignored", "--nocapture", "--quiet", "--test-threads=1"];
    let command = std::iter::once(program).chain(words.map(Into::into)).collect();
    let path = output("figures");
    let result = record(&RecordOptions::new(command, path.clone()));
    if !is_permitted(&result) {
        return None;
    }
    let report = Replay::open(&path, ReplayOptions::default()).unwrap().run(&mut |_, _| {}).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(report.is_good(), "{:#?}", report.processes);
    Some(report.processes)
}

#[test]
fn figures_are_those_of_the_process_at_its_end() {
    let Some(processes) = processes() else { return };
    let [parent, child] = &processes[..] else { panic!("{} processes", processes.len()) };
    let linux = parent.linux.as_ref().unwrap();
    assert_eq!(parent.quire.mappings, linux.mappings);
    // Tables go when they are empty, which Linux keeps.
    assert!(parent.quire.page_tables <= linux.vm_pte, "{parent:#?}");
    // The stacks of the threads were there once.
    assert!(parent.quire.peak_mappings >= parent.quire.mappings + THREADS as u64);
    assert!(parent.quire.peak_resident >= PARENT_BYTES as u64);
    // The child used the parent's address space before it had one of its own.
    let linux = child.linux.as_ref().unwrap();
    assert_eq!(child.quire.mappings, linux.mappings);
    assert!(child.quire.peak_resident < PARENT_BYTES as u64 / 2, "{:?}", child.quire);
}
