//! Programs that were saved: those in `programs/` once parted the sides and must not again; those in `known/` show
//! the differences that stay, one each.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use quire_diff::KnownDifference;
use quire_diff::program::Program;
use quire_mm::Techniques;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The programs in a folder beside this file, with their names.
fn programs(folder: &str) -> Vec<(String, Program)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let named = |path: PathBuf| {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        let text = std::fs::read_to_string(&path).expect("a text");
        let program = text.parse().unwrap_or_else(|error| panic!("{}, {error}", path.display()));
        (name, program)
    };
    files.into_iter().map(named).collect()
}

#[test]
fn what_once_differed_is_alike() {
    let programs = programs("programs");
    assert!(programs.len() >= 6);
    for (name, program) in programs {
        let report = quire_diff::run_program(&program, Techniques::default()).expect("Linux can be asked");
        if let Some(failure) = report.failure {
            panic!("{name}:\n{failure}");
        }
        assert_eq!(report.compared, program.ops.len() as u64, "{name}: an operation was not made");
    }
}

#[test]
fn every_known_difference_is_still_there() {
    let mut shown = BTreeSet::new();
    for (name, program) in programs("known") {
        let known = KnownDifference::ALL.iter().find(|known| known.name() == name);
        let known = *known.unwrap_or_else(|| panic!("{name} is the name of no known difference"));
        shown.insert(known);
        let report = quire_diff::run_program(&program, Techniques::default()).expect("Linux can be asked");
        if let Some(failure) = report.failure {
            panic!("{name}:\n{failure}");
        }
        // Only some processors have protection keys.
        if known != KnownDifference::ExecuteOnly {
            assert!(report.known.contains_key(&known), "{name} is a difference no longer");
        }
    }
    assert_eq!(shown.len(), KnownDifference::ALL.len(), "each difference has its program");
}

#[test]
fn every_known_difference_is_documented_by_name() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/differences.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let section = text.split("\n## ").find(|section| section.starts_with("What `quire diff` knows by name"));
    let lines = section.expect("the section").lines();
    let named: BTreeSet<&str> =
        lines.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let known: BTreeSet<&str> = KnownDifference::ALL.iter().map(|known| known.name()).collect();
    assert_eq!(named, known);
}
