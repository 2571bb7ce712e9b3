//! Constructing [`Spaces`]: the one time that a memory manager allocates before a plan can be set through it.

use crate::common::*;
use crate::report::Report;
use quire_frame::{FailAim, FailCaller, FailPlan, FailSite, FrameConfig, Frames};
use quire_space::{NoReclaim, Spaces, SpacesConfig};

fn platform() -> HostPlatform {
    HostPlatform::new(&HostConfig::with_ram(4 << 20).paranoid()).expect("the host has memory")
}

fn construct(plan: FailPlan) -> Result<Spaces<HostPlatform>, Error> {
    construct_on(platform(), plan)
}

fn construct_on(platform: HostPlatform, plan: FailPlan) -> Result<Spaces<HostPlatform>, Error> {
    let frames = Frames::new(platform, FrameConfig::default()).expect("4 MiB hold a memory map");
    frames.fail_points().set(plan);
    let swap = Swap::new(Memcgs::new(frames)?, SwapTechnique::default());
    let files = Spaces::no_files(&swap);
    Spaces::new(swap, files, SpacesConfig::default(), &NoReclaim)
}

/// Fails each allocation of a construction. A construction that fails drops the frames, and with them the
/// record of the callers. So the callers are taken from one that succeeds, and aimed at by their lines.
pub(crate) fn each_failure(report: &mut Report) {
    const NAME: &str = "constructing a machine";
    let made = construct(FailPlan::COUNT).expect("nothing fails");
    let callers: Vec<FailCaller> = made.frames().fail_points().callers().collect();
    report.note(NAME, &callers, None);
    for caller in callers {
        let line = FailAim::Line { file: caller.location.file(), line: caller.location.line() };
        let error = construct(FailPlan::nth(1).at(line)).map(drop).expect_err("its allocation failed");
        assert_eq!(error, Error::NoFrames(AllocError::Injected));
        let mut struck = caller;
        (struck.seen, struck.failed) = (1, 1);
        report.note(NAME, &[struck], Some(error));
    }
}

#[test]
fn construction_fails_at_each_of_its_allocations() {
    let made = construct(FailPlan::COUNT).expect("nothing fails");
    let allocations = made.frames().fail_points().seen();
    assert!(allocations >= 5, "three caches, the zero page and the bits of the tags");
    // All on one machine: none that fails keeps its RAM.
    let platform = platform();
    for nth in 1..=allocations {
        assert_eq!(
            construct_on(platform.clone(), FailPlan::nth(nth)).map(drop),
            Err(Error::NoFrames(AllocError::Injected)),
            "{nth}"
        );
    }
    assert!(construct_on(platform, FailPlan::nth(allocations + 1)).is_ok());
    let own = FailAim::Site(FailSite::new("spaces"));
    assert!(construct(FailPlan::every(1).at(own)).is_err());
}

#[test]
fn a_machine_that_is_too_small_is_refused() {
    let (mut refused, mut built) = (0, 0);
    for pages in 1..=256 {
        match Machine::<X86_64Level4>::new(
            &HostConfig::with_ram(pages << 12),
            MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() },
        ) {
            Ok(machine) => {
                built += 1;
                assert!(machine.audit().is_empty(), "{pages} pages");
            }
            Err(MachineError::Memory(_)) => {
                refused += 1;
                assert_eq!(built, 0, "{pages} pages are too few, though fewer were enough");
            }
            Err(other) => panic!("{pages} pages: {other}"),
        }
    }
    assert!(refused > 0 && built > 0, "{refused} refused, {built} built");
}
