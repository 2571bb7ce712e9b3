//! Files whose bytes are shared memory of a machine: mapped, written by programs, limited, and mapped without
//! a name.

use crate::common::{HostMemory, USER};
use quire_host::{HostConfig, HostPlatform};
use quire_mm::frame::KernelHeap;
use quire_mm::memcg::MemcgId;
use quire_mm::platform::{Access, PAGE_SIZE, VirtAddr};
use quire_mm::space::{MapFlags, MapRequest, Protection};
use quire_mm::{Memory, MemoryConfig};
use quire_tmpfs::{Allocate, Error, Limits, New, Options, Seek, Shmem, Time, Tmpfs};

pub(crate) type Fs<'m> = Tmpfs<'m, Shmem<'m, HostPlatform, fn() -> Time>>;

pub(crate) fn shared(pages: u64) -> MapRequest {
    let rights = Protection::READ | Protection::WRITE;
    MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(pages * PAGE_SIZE, rights) }
}

pub(crate) fn with_machine(test: impl FnOnce(&HostMemory, &quire_host::Vcpu)) {
    let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(64 << 20)).unwrap();
    let shared = platform.clone();
    let memory = Memory::new(platform, MemoryConfig::default()).unwrap();
    test(&memory, &shared.vcpu(0).unwrap());
}

pub(crate) fn new_fs<'m>(heap: &'m KernelHeap<'m, HostPlatform>, memory: &'m HostMemory) -> Fs<'m> {
    let limits = Limits { pages: Some(2), inodes: None };
    let options = Options { limits, ..Options::default() };
    Tmpfs::new(heap, Shmem::new(memory, Time::default as fn() -> Time), &options).unwrap()
}

#[test]
fn a_file_is_mapped_and_outlives_its_name() {
    with_machine(|memory, cpu| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = new_fs(&heap, memory);
        let file = fs.root().create(b"program", New::Regular, &USER).unwrap();
        file.set_size(3 * PAGE_SIZE).unwrap();
        let space = memory.create_space().unwrap();
        let opened = file.data().unwrap().file().open(Access::Write).unwrap();
        let place = space.mmap_file(&shared(3), &opened).unwrap();
        drop(opened);
        let page = |number: u64| VirtAddr(place.0 + number * PAGE_SIZE);
        cpu.program(&space).write_u64(page(0), 42).unwrap();
        cpu.program(&space).write_u64(page(2), 43).unwrap();
        assert_eq!((fs.usage().pages, file.stat().blocks), (2, 16));
        // The file system is full: a fault in the hole is refused.
        assert!(cpu.program(&space).write_u64(page(1), 44).is_err());
        file.set_size(PAGE_SIZE).unwrap();
        assert_eq!((fs.usage().pages, file.stat().blocks), (1, 8));
        fs.root().unlink(b"program").unwrap();
        drop(file);
        // The mapping has the inode, and its bytes.
        assert_eq!((fs.usage().inodes, fs.usage().pages), (2, 1));
        assert_eq!(cpu.program(&space).read_u64(page(0)).unwrap(), 42);
        space.munmap(place, 3 * PAGE_SIZE).unwrap();
        assert_eq!((fs.usage().inodes, fs.usage().pages), (1, 0));
        assert_eq!(quire_tmpfs::audit(&fs, &mut |finding| panic!("{finding:?}")), fs.usage());
    });
}

#[test]
fn bytes_in_the_page_cache_are_truncated_and_punched_under_the_inode_lock() {
    with_machine(|memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = new_fs(&heap, memory);
        let file = fs.root().create(b"f", New::Regular, &USER).unwrap();
        file.set_size(5 * PAGE_SIZE + 7).unwrap();
        assert_eq!(file.stat().size, 5 * PAGE_SIZE + 7);
        file.allocate(Allocate::Punch, (100, 2 * PAGE_SIZE), None).unwrap();
        assert_eq!(file.set_size(u64::MAX), Err(Error::Invalid));
        assert_eq!(file.seek(0, Seek::Data), Err(Error::PastEnd), "all of it is a hole");
        file.allocate(Allocate::Extend, (0, 10), None).unwrap();
        assert_eq!(file.seek(1, Seek::Hole), Ok(1), "what no program has used looks like a hole");
        assert_eq!(file.stat().blocks, 8);
        assert_eq!(file.allocate(Allocate::Extend, (0, 5 * PAGE_SIZE), None), Err(Error::NoSpace));
        assert_eq!(file.stat().blocks, 8, "what this call allocated is given back");
        // The program that calls pays.
        let memcg = memory.create_memcg(MemcgId::ROOT, "m").unwrap();
        let space = memory.create_space().unwrap();
        space.set_memcg(memcg).unwrap();
        file.allocate(Allocate::Extend, (0, 2 * PAGE_SIZE), Some(&space)).unwrap();
        let mut current = String::new();
        quire_mm::proc::memcg_file(memory, "m/memory.stat", None, &mut current).unwrap();
        assert!(current.contains("shmem 4096\n"), "{current}");
        file.allocate(Allocate::Punch, (0, 2 * PAGE_SIZE), Some(&space)).unwrap();
        assert_eq!(file.stat().blocks, 0);
    });
}
