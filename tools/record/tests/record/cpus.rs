//! The CPUs on which a program may run are the same recorded and alone.

use super::recording::Recording;
use super::shared::cpus;

#[test]
fn a_program_sees_its_own_cpus() {
    let before = cpus();
    let recorded = Recording::of("looks_at_its_cpus");
    assert_eq!(cpus(), before, "the recorder's thread has its own again");
    assert!(recorded.is_none_or(|recorded| recorded.summary.exit_code() == 0));
}
