//! Making spaces, and filling them as a program loader does.

use crate::common::*;
use crate::scenario::Scenario;
use crate::scene::{BASE, Scene, access, empty, filled};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("creating_a_space_fails_whole", empty, |scene| {
        let space = HostSpace::from(scene.machine.memory().create_space()?);
        scene.others.borrow_mut().push(space);
        Ok(())
    })
    .allocations(2..=3),
    Scenario::new("installing_a_mapping_fails_whole", filled, |scene| {
        scene.space.install(&private(BASE + 32 * PAGE, 4))
    })
    .succeeded(|scene| assert_eq!(scene.read(BASE + 35 * PAGE), Ok(0))),
    Scenario::new("installing_shared_memory_fails_whole", filled, |scene| {
        let flags = VmFlags::from_protection(RW) | VmFlags::MAY_ACCESS | VmFlags::SHARED | VmFlags::MAYSHARE;
        scene.space.install(&Mapping { flags, page_offset: 0, ..private(BASE + 32 * PAGE, 4) })
    })
    .succeeded(|scene| {
        assert_eq!(scene.write(BASE + 35 * PAGE, 1), Ok(()));
        assert_eq!(scene.space.figures().resident_shmem, PAGE);
    }),
    // The old image goes only when the new one is whole, so a program whose `execve` fails runs on.
    Scenario::new("replacing_a_program_fails_whole", old_image, execute).succeeded(|scene| {
        let others = scene.others.borrow();
        let image = others.first().expect("there is a program");
        assert_eq!(scene.read_in(image, BASE), Ok(0));
        assert_eq!(scene.read_in(image, STACK), Ok(7));
        assert_eq!(scene.read_in(image, OLD), Err(NOT_MAPPED));
    }),
];

const STACK: u64 = BASE + 1024 * PAGE;
const OLD: u64 = BASE + 2048 * PAGE;

fn private(start: u64, pages: u64) -> Mapping {
    Mapping {
        range: VirtRange::new(VirtAddr(start), page(VirtAddr(start), pages)),
        flags: VmFlags::from_protection(RW) | VmFlags::MAY_ACCESS | VmFlags::ACCOUNT,
        page_offset: start / PAGE,
        file: None,
    }
}

fn old_image(scene: &Scene<'_>) {
    filled(scene);
    let old = create_space(scene.machine);
    old.mmap(&MapRequest::anonymous(PAGE, RW).at(VirtAddr(OLD), MapFlags::FIXED)).expect("nothing fails yet");
    scene.write_in(&old, OLD, 1).expect("nothing fails yet");
    scene.others.borrow_mut().push(old);
}

fn execute(scene: &Scene<'_>) -> Result<(), Error> {
    let new = HostSpace::from(scene.machine.memory().create_space()?);
    let text = Mapping {
        file: Some(1),
        flags: VmFlags::from_protection(READ) | VmFlags::MAY_ACCESS,
        ..private(BASE, 8)
    };
    new.install(&text)?;
    new.install(&private(BASE + 8 * PAGE, 8))?;
    let stack =
        MapRequest::anonymous(2 * PAGE, RW).at(VirtAddr(STACK), MapFlags::FIXED | MapFlags::GROWSDOWN);
    new.mmap(&stack)?;
    access(scene.write_in(&new, STACK, 7))?;
    access(scene.write_in(&new, STACK - 8, 8))?;
    access(scene.cpu.program(&new).touch(VirtAddr(BASE), Access::Read))?;
    scene.others.borrow_mut()[0] = new;
    Ok(())
}
