//! The models need builds of their own, under `--cfg loom` and `--cfg shuttle`. This runs them by
//! `scripts/models.sh`, so that one command runs all tests.

#![cfg(not(any(loom, shuttle)))]

use std::path::Path;
use std::process::Command;

#[test]
fn the_models_of_loom_and_shuttle_hold() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/models.sh");
    // cargo gives tests a folder in its target folder, wherever that is.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in the target folder");
    let output = Command::new(&script)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap_or_else(|error| panic!("{} cannot be run: {error}", script.display()));
    assert!(
        output.status.success(),
        "{} failed: {}\n{}\n{}",
        script.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
