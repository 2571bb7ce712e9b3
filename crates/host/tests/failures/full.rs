//! RAM that is full.

use crate::common::{PAGE, RW, assert_audit, in_use, machine, map_at, page};
use crate::scene::{BASE, Scene};
use quire_arch::VirtAddr;
use quire_host::AccessError;
use quire_mm::space::{Advice, FaultError, MapFlags, MapRequest};

#[test]
fn memory_that_is_full_can_be_emptied_and_used_again() {
    let machine = machine(4, 1);
    let cpu = machine.vcpu(0).expect("the CPU is free");
    let before = in_use(&machine);
    let scene = Scene::new(&machine, &cpu);
    let len = 8 << 20;
    // More than RAM, so NORESERVE.
    let request = MapRequest::anonymous(len, RW).at(VirtAddr(BASE), MapFlags::FIXED | MapFlags::NORESERVE);
    let addr = scene.space.mmap(&request).expect("nothing is promised");
    let mut written = 0;
    let full = loop {
        match scene.write(page(addr, written).0, written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, AccessError::Fault(FaultError::OutOfMemory(_))), "{full}");
    assert!(written > 512, "only {written} pages");
    assert_audit(&machine);
    for at in 0..written {
        assert_eq!(scene.read(page(addr, at).0), Ok(at));
    }
    assert!(scene.space.fork().is_err());
    assert_audit(&machine);
    scene.space.madvise(addr, len / 4, Advice::DontNeed).expect("dropping pages allocates nothing");
    assert_eq!(scene.write(page(addr, written).0, 7), Ok(()));
    assert_eq!(scene.read(addr.0), Ok(0));
    scene.space.munmap(addr, len).expect("unmapping allocates nothing");
    map_at(&scene.space, BASE, PAGE, RW);
    assert_eq!(scene.write(BASE, 1), Ok(()));
    drop(scene);
    assert_audit(&machine);
    assert_eq!(in_use(&machine), before);
}
