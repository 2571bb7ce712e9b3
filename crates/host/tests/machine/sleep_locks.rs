//! Sleeping locks that are only tried.

use quire_arch::LockClass;
use quire_arch::paging::X86_64Level4;
use quire_host::{HostConfig, HostPlatform};
use quire_sync::RwSleepLock;

fn platform() -> HostPlatform<X86_64Level4> {
    HostPlatform::new(&HostConfig::with_ram(1 << 20)).expect("the host has memory")
}

#[test]
fn a_try_that_fails_leaves_the_lock_to_its_holder() {
    let (platform, lock) = (platform(), RwSleepLock::new(LockClass::Rmap));
    let writer = lock.write(&platform);
    assert!(lock.try_read(&platform).is_none());
    assert!(lock.try_write(&platform).is_none());
    assert!(lock.is_write_locked());
    drop(writer);
    let reader = lock.read(&platform);
    assert!(lock.try_write(&platform).is_none());
    assert!(lock.try_read(&platform).is_some());
    assert!(lock.try_write(&platform).is_none(), "the reader is still there");
    drop(reader);
    assert!(lock.try_write(&platform).is_some());
}
