//! Programs that were saved: those in `programs/` once parted the sides and must not again; those in `known/`
//! show the differences that stay, one each.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use quire_diff::program::{Call, Program};
use quire_diff::{KnownDifference, Setup};
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

/// Whether the host allows so many mappings that programs do not make them all.
fn too_many_mappings() -> bool {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().is_ok_and(|most: u64| most >= 1 << 17)
}

#[test]
fn what_once_differed_is_alike() {
    let programs = programs("programs");
    assert!(programs.len() >= 12);
    for (name, program) in programs {
        let report = quire_diff::run_program(&program, Setup::default()).expect("Linux can be asked");
        if let Some(failure) = report.failure {
            panic!("{name}:\n{failure}");
        }
        if report.known.contains_key(&KnownDifference::PageOut) {
            println!("{name} is compared in part: this host pages out to a device of its own");
            continue;
        }
        if report.not_made > 0 && too_many_mappings() && program.ops.iter().any(|op| op.call == Call::Crowd) {
            println!("{name} is not compared: this host allows programs too many mappings");
            continue;
        }
        if report.segments > 0 {
            println!("{name} is compared in part: a name space of segments takes a privilege");
            continue;
        }
        assert_eq!(report.compared, program.ops.len() as u64, "{name}: an operation was not made");
    }
}

/// Whether the processor and the host's settings are such that Linux shows the difference.
fn is_to_be_met(known: KnownDifference) -> bool {
    match known {
        // These are met with swap space only, which takes root, and on older kernels; and what Linux reads
        // ahead is its disk's to say.
        KnownDifference::SwapInWhole | KnownDifference::GuardPages | KnownDifference::FilePages => false,
        KnownDifference::LowEligible
        | KnownDifference::ThirdSharer
        | KnownDifference::PartShared
        | KnownDifference::MovedPart
        | KnownDifference::LazySplit => {
            let path = "/sys/kernel/mm/transparent_hugepage/enabled";
            let on = std::fs::read_to_string(path).is_ok_and(|text| !text.contains("[never]"));
            if !on {
                println!("{} is not looked for: {path} allows no large folios", known.name());
            }
            on
        }
        _ => true,
    }
}

#[test]
fn every_known_difference_is_still_there() {
    let mut shown = BTreeSet::new();
    for (name, program) in programs("known") {
        let known = KnownDifference::ALL.iter().find(|known| known.name() == name);
        let known = *known.unwrap_or_else(|| panic!("{name} is the name of no known difference"));
        shown.insert(known);
        let report = quire_diff::run_program(&program, Setup::default()).expect("Linux can be asked");
        if let Some(failure) = report.failure {
            panic!("{name}:\n{failure}");
        }
        if known != KnownDifference::PageOut && report.known.contains_key(&KnownDifference::PageOut) {
            println!("{name} is compared in part: this host pages out to a device of its own");
        } else if is_to_be_met(known) {
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
        lines.filter_map(|line| line.strip_prefix("- `")?.split('`').next()).collect();
    let known: BTreeSet<&str> = KnownDifference::ALL.iter().map(|known| known.name()).collect();
    assert_eq!(named, known);
}

/// What a process was to do that does not exist is not done, nor anything after the last process is gone.
#[test]
fn what_no_process_makes_is_passed_over() {
    use std::fmt::Write as _;
    let mut text =
        "quire-diff 1\nwindow 0x7fffc00000\n1 p0 fork(0x1)\n2 p0 fork(0x2)\n3 p1 fork(0x3)\n".to_owned();
    for id in 4..304 {
        // Each of the living comes by while the others wait.
        let process = if id % 5 == 0 { id / 5 % 4 } else { 7 };
        let _ = writeln!(text, "{id} p{process} read(window+0x0)");
    }
    text += "400 p0 exit()\n401 p1 exit()\n402 p2 exit()\n403 p3 exit()\n404 p0 read(window+0x0)\n";
    let program: Program = text.parse().expect("a program");
    for _ in 0..20 {
        let report = quire_diff::run_program(&program, Setup::default()).expect("Linux can be asked");
        assert!(report.failure.is_none());
        assert_eq!((report.compared, report.not_made), (67, 241));
    }
}
