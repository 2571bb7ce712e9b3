//! No memory is short, but a space has as many mappings as `vm.max_map_count` allows.

use crate::common::*;
use crate::scene::{BASE, Scene, Snapshot, filled};

/// In the middle of a mapping.
const INSIDE: VirtAddr = VirtAddr(BASE + 4 * PAGE);

/// A split of a mapping at `vm.max_map_count` fails as on Linux 6.18: ENOMEM, or EAGAIN from madvise.
#[test]
fn no_mapping_is_split_at_the_limit() {
    type Split = fn(&Scene<'_>) -> Result<(), Error>;
    let splits: [(&str, Split, Errno); 4] = [
        ("madvise", |s| s.space.madvise(INSIDE, PAGE, Advice::DontFork), Errno::EAGAIN),
        ("mprotect", |s| s.space.mprotect(INSIDE, PAGE, READ, false), Errno::ENOMEM),
        ("mlock", |s| s.space.mlock(INSIDE, PAGE, false), Errno::ENOMEM),
        ("munmap", |s| s.space.munmap(INSIDE, PAGE), Errno::ENOMEM),
    ];
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).expect("the CPU is free");
    let scene = Scene::new(&machine, &cpu);
    filled(&scene);
    map_at(&scene.space, BASE + 20 * PAGE, PAGE, NONE);
    scene.space.set_limits(Limits { mappings: 2, ..Limits::default() });
    let before = Snapshot::of(&scene);
    for (name, split, expected) in splits {
        assert_eq!(split(&scene).map_err(Error::errno), Err(expected), "{name}");
        assert_eq!(Snapshot::of(&scene), before, "{name}");
        assert_audit(&machine);
    }
    // A mapping that changes as a whole is not split.
    assert_eq!(scene.space.mprotect(VirtAddr(BASE), 16 * PAGE, READ, false), Ok(()));
    scene.space.set_limits(Limits::default());
    assert_eq!(scene.space.munmap(INSIDE, PAGE), Ok(()));
}
