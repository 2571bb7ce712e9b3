//! The inputs that fuzzers found worth keeping, run without a fuzzer.

use quire_fuzz::TARGETS;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// Names the input that runs when a check panics.
struct Running(PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("with the input {}", self.0.display());
        }
    }
}

/// Every file in the folders of all targets, in one order everywhere.
fn inputs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a name").path()).collect();
    paths.sort();
    paths
}

/// Runs the inputs of a folder through the target of the same name.
fn run(name: &str) {
    run_from(name, name);
}

fn run_from(folder: &str, name: &str) {
    let (_, target) = TARGETS.iter().find(|target| target.0 == name).expect("a target");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(folder);
    let (mut count, mut total) = (0, 0);
    for path in inputs(&folder) {
        let bytes = fs::read(&path).expect("a kept input");
        count += 1;
        total += bytes.len();
        let _running = Running(path);
        target(&bytes, false);
    }
    println!("{name}: {count} inputs, {total} bytes");
    assert!(count >= 50, "{count} inputs are too few");
    assert!(count <= 200 && total <= 300 << 10, "{count} inputs of {total} bytes are too many to keep");
}

#[test]
fn call_decoder_passes_its_corpus() {
    run("call_decoder");
}

#[test]
fn memory_calls_pass_their_corpus() {
    run("memory_calls");
}

#[test]
fn memory_formats_pass_their_corpus() {
    run("memory_formats");
}

#[test]
fn trace_reader_passes_its_corpus() {
    run("trace_reader");
}

#[test]
fn trace_replay_passes_the_corpus_of_the_reader() {
    run_from("trace_reader", "trace_replay");
}

#[test]
fn trace_short_passes_the_corpus_of_the_reader() {
    run_from("trace_reader", "trace_short");
}

/// Every target has a folder, and every folder a target; the targets of traces have one.
#[test]
fn folders_and_targets_match() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let folders = inputs(&folder);
    let names: Vec<_> = folders.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let targets =
        TARGETS.iter().map(|target| target.0).filter(|name| !["trace_replay", "trace_short"].contains(name));
    assert_eq!(names, targets.collect::<Vec<_>>());
}
