//! The loop that drives every scenario.

use crate::common::*;
use crate::report::Report;
use crate::scenario::{Scenario, Undone};
use crate::scene::{Scene, Snapshot};
use quire_frame::{AllocRequest, FailCaller, FailPlan, FailSite};
use std::thread;

/// Where pages are faulted in: `mmap` and some other calls hide a failure there.
const FAULTS: [&str; 7] = [
    "crates/space/src/calls/fault.rs",
    "crates/fault/src/faults.rs",
    "crates/fault/src/new_page.rs",
    "crates/fault/src/resolve.rs",
    "crates/fault/src/resolve/huge.rs",
    "crates/fault/src/resolve/spare.rs",
    "crates/fault/src/cow.rs",
];

/// Where there is a fallback: pages that find no frame are not read ahead, pages of zeros are read like
/// others, a large folio of a file is a smaller one, or mapped by pages, and one that is to be cut stays
/// whole.
const OTHERWISE: [&str; 10] = [
    "crates/file/src/transfers.rs",
    "crates/file/src/cache/ahead.rs",
    "crates/file/src/cache/cut.rs",
    "crates/file/src/cache/new_folio.rs",
    "crates/file/src/cache/swapped.rs",
    "crates/fault/src/cached/huge.rs",
    "crates/fault/src/cached/swapped.rs",
    "crates/space/src/spaces/held_opening.rs",
    "crates/fault/src/swap_in/ahead.rs",
    "crates/fault/src/vm_fault/zeros.rs",
];

/// Sites that allocate frames; all others are objects of slab caches, except [`DEVICE`].
pub(crate) const FRAMES: [&str; 14] = [
    "kernel",
    "file",
    "file_ahead",
    "table",
    "anonymous",
    "huge_zero",
    "slab",
    "memcg",
    "swap_device",
    "swap_table",
    "ramdisk",
    "zram",
    "zsmalloc",
    "zswap",
];

/// Reads and writes of devices, which plans without an aim make fail too.
pub(crate) const DEVICE: &str = "swap";

/// Where pages are paged out: a failure there is not reported, since the page stays.
const PAGING_OUT: &str = "crates/swap/src/";

/// Address-space tags, the first of which is the shared one: few, so that all can be allocated.
const TAGS: u32 = 6;

/// A machine for scenarios.
pub(crate) struct Driver {
    cpu: Vcpu,
    machine: Machine,
}

/// Prints the name of what ran when a check panics.
struct Running<'s>(&'s Scenario, FailPlan);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("in the scenario `{}` under {:?}", self.0.name, self.1);
        }
    }
}

impl Driver {
    pub(crate) fn new() -> Self {
        let machine = Setup::mib(16).asids(TAGS).with(|memory| memory.huge.read_only_files = true).build();
        // Large folios only where a scenario asks for them.
        let sizes = [4, 9].into_iter().filter_map(Order::new).collect();
        machine.memory().spaces().huge().change(|policy| policy.with_sizes(sizes, SizeEnabled::Madvise));
        Self { cpu: machine.vcpu(0).expect("the CPU is free"), machine }
    }

    /// Runs `scenario` with its first allocation failing, then its second, and so on until it passes
    /// untouched.
    pub(crate) fn each_failure(&self, scenario: &Scenario, report: &mut Report) {
        let failing = (1..1000).find(|&nth| !self.run(scenario, FailPlan::nth(nth), report));
        let allocations = failing.unwrap_or_else(|| panic!("`{}` never passes", scenario.name)) - 1;
        assert!(
            scenario.allocations.contains(&allocations),
            "`{}` made {allocations} allocations, not {:?}",
            scenario.name,
            scenario.allocations,
        );
    }

    /// Runs `scenario` once under `plan`, and once more without a plan if it failed. Returns whether the plan
    /// struck.
    pub(crate) fn run(&self, scenario: &Scenario, plan: FailPlan, report: &mut Report) -> bool {
        let _running = Running(scenario, plan);
        let fail_points = self.machine.memory().frames().fail_points();
        let before_all = in_use(&self.machine);
        let scene = Scene::new(&self.machine, &self.cpu);
        (scenario.prepare)(&scene);
        let before = Snapshot::of(&scene);
        self.empty_caches();

        fail_points.set(plan);
        let result = (scenario.attempt)(&scene);
        fail_points.set(FailPlan::OFF);
        let struck = fail_points.failed() > 0;
        let callers: Vec<_> = fail_points.callers().collect();
        assert_eq!(fail_points.callers_lost(), 0, "the table of callers is too small");
        report.note(scenario.name, &callers, result.err());
        assert_audit(&self.machine);

        match result {
            Ok(()) if !struck => (scenario.succeeded)(&scene),
            Ok(()) => {
                assert_may_hide(scenario, &callers);
                if let Some(check) = scenario.hides {
                    check(&scene);
                }
            }
            Err(error) => {
                assert!(struck, "{error} without a cause");
                let after = Snapshot::of(&scene);
                match scenario.undone {
                    Undone::All => assert_eq!(after, before, "{error} left something changed"),
                    Undone::Contents => after.assert_words_kept(&before),
                    Undone::AsChecked => {}
                }
                (scenario.refused)(&scene, error);
                assert_eq!((scenario.attempt)(&scene), Ok(()), "the call does not work any more");
                (scenario.succeeded)(&scene);
            }
        }
        assert_audit(&self.machine);
        drop(scene);
        assert_audit(&self.machine);
        assert_eq!(in_use(&self.machine), before_all, "frames or objects are lost");
        self.assert_tags_free();
        struck
    }

    /// Panics unless every tag can be allocated: with too few, spaces share one, and nothing else shows it.
    fn assert_tags_free(&self) {
        let create = |_| create_space(&self.machine);
        let spaces: Vec<_> = (1..TAGS).map(create).collect();
        assert!(spaces.iter().all(|space| space.asid() != Asid::NONE), "a tag is lost");
    }

    /// Empties every slab cache and CPU list, so that each object of a call takes frames: an allocation that
    /// cannot be served collects all free memory.
    fn empty_caches(&self) {
        let frames = self.machine.memory().frames();
        let pin = self.machine.memory().platform().pin();
        let request = AllocRequest::new(Order::MAX, FailSite::new("test"));
        let blocks: Vec<_> = std::iter::from_fn(|| frames.allocate(&pin, request).ok()).collect();
        for block in blocks {
            frames.free(&pin, block, Order::MAX).expect("just allocated");
        }
    }
}

/// A scenario whose call succeeds though allocations failed says so; only populating may have failed.
fn assert_may_hide(scenario: &Scenario, callers: &[FailCaller]) {
    // A fault allocates one kind of object, the anon_vma of a mapping, and so frames for those. Which site
    // asked for an object is not known where the plan was aimed at frames only.
    let memcg =
        callers.iter().any(|caller| caller.site == "anon_vma" && FAULTS.contains(&caller.location.file()))
            || callers.iter().all(|caller| FRAMES.contains(&caller.site));
    let ahead = callers.iter().any(|caller| OTHERWISE.contains(&caller.location.file()));
    let pages_out = callers.iter().any(|caller| caller.location.file().starts_with(PAGING_OUT));
    for caller in callers.iter().filter(|caller| caller.failed > 0) {
        let location = caller.location;
        assert!(
            scenario.hides.is_some()
                && (FAULTS.contains(&location.file())
                    || OTHERWISE.contains(&location.file())
                    || location.file().starts_with(PAGING_OUT)
                    || (memcg || ahead || pages_out) && caller.site == "slab"),
            "the failure at {location} ({}) is swallowed",
            caller.site,
        );
    }
    assert!(scenario.hides.is_some(), "a failure is swallowed");
}
