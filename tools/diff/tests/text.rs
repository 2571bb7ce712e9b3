//! The text form of programs.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use proptest::prelude::*;
use quire_diff::program::Program;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_is_read_as_it_was_written(seed in any::<u64>(), number in 0..1000u64, len in 0..300usize) {
        let program = Program::random(seed, number, len);
        prop_assert_eq!(program.to_string().parse::<Program>(), Ok(program));
    }

    #[test]
    fn no_text_is_too_odd_to_be_refused(text in "\\PC{0,80}", line in 0..12usize) {
        let mut lines: Vec<String> = Program::random(1, 1, 10).to_string().lines().map(str::to_owned).collect();
        lines.insert(line, text);
        // Whether it is a program or not: it is read, or refused with a line that there is.
        if let Err(error) = lines.join("\n").parse::<Program>() {
            prop_assert!((1..=lines.len()).contains(&error.line), "{}", error);
        }
    }
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    let head = "quire-diff 1\nwindow 0x7fffc00000\n";
    for (text, line, what) in [
        ("", 0, "heading is missing"),
        ("quire-diff 2", 1, "expected the heading"),
        ("quire-diff 1\n", 1, "window is missing"),
        ("quire-diff 1\nwindow 0x1000", 2, "multiple of 1 MiB"),
        (&format!("{head}file tape"), 3, "no store of files"),
        (&format!("{head}1 p0 munmap(0x1000)"), 3, "takes 2 arguments"),
        (&format!("{head}\n# a remark\n1 p0 unmap(0x1000)"), 5, "no call that is known"),
        (&format!("{head}1 p0 munmap(somewhere+1, 0x1000)"), 3, "no base of an address"),
        (&format!("{head}1 p9 munmap(0x1000, 0x1000)"), 3, "at most 8 processes"),
        (&format!("{head}1 p0 fork(0x0)"), 3, "one of 1..8"),
        (&format!("{head}2 p0 exit()\n2 p0 exit()"), 4, "numbers of operations rise"),
        (&format!("{head}1 p0 mprotect(0x1000, 0x1000, PROT_FLY)"), 3, "not known here"),
    ] {
        let error = text.parse::<Program>().expect_err(text);
        assert_eq!(error.line, line, "{error}");
        assert!(error.what.contains(what), "{error}");
    }
}
