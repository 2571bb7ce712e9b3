//! A tmpfs on a host machine, with the bytes of its files in the test's own memory: page by page, as Linux's
//! shmem has them.

#![allow(dead_code, reason = "each test binary uses its own part")]

use quire_host::{HostConfig, HostPlatform};
use quire_mm::frame::KernelHeap;
use quire_mm::{Memory, MemoryConfig};
use quire_tmpfs::{Account, Backend, Error, FileData, Node, Options, Owner, Seek, Stat, Time, Tmpfs, Walk};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const PAGE: u64 = 4096;

pub(crate) type HostMemory = Memory<HostPlatform>;
pub(crate) type TestNode<'t, 'm> = Node<'t, Files<'m>>;
pub(crate) type TestFs<'m> = Tmpfs<'m, Files<'m>>;

pub(crate) const USER: Owner = Owner { permissions: 0o644, uid: 0, gid: 0 };

/// A page: its bytes, and whether there is data in it. One that `fallocate` made has none.
#[derive(Clone)]
struct Page {
    bytes: Box<[u8; PAGE as usize]>,
    has_data: bool,
}

struct Contents {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

/// The bytes of a file.
pub(crate) struct Bytes {
    contents: Mutex<Contents>,
    account: Account,
}

impl Bytes {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap()
    }

    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> usize {
        let contents = self.contents();
        let end = contents.size.min(at.saturating_add(to.len() as u64));
        for (byte, place) in to.iter_mut().zip(at..end) {
            *byte = contents.pages.get(&(place / PAGE)).map_or(0, |page| page.bytes[(place % PAGE) as usize]);
        }
        end.saturating_sub(at) as usize
    }

    /// Writes as far as there are pages.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<usize, Error> {
        let mut contents = self.contents();
        let mut done = 0;
        while done < from.len() {
            let place = at + done as u64;
            let bytes = ((PAGE - place % PAGE) as usize).min(from.len() - done);
            let made = self.page(&mut contents, place / PAGE);
            if let Err(error) = made {
                return if done > 0 { Ok(done) } else { Err(error) };
            }
            let page = contents.pages.get_mut(&(place / PAGE)).unwrap();
            page.bytes[(place % PAGE) as usize..][..bytes].copy_from_slice(&from[done..done + bytes]);
            page.has_data = true;
            done += bytes;
            contents.size = contents.size.max(at + done as u64);
        }
        Ok(done)
    }

    /// Makes a page, and says whether it was made.
    fn page(&self, contents: &mut Contents, index: u64) -> Result<bool, Error> {
        if contents.pages.contains_key(&index) {
            return Ok(false);
        }
        self.account.take_pages(1)?;
        contents.pages.insert(index, Page { bytes: Box::new([0; PAGE as usize]), has_data: false });
        Ok(true)
    }

    fn remove(&self, contents: &mut Contents, indices: Range<u64>) {
        let gone: Vec<u64> = contents.pages.range(indices).map(|(index, _)| *index).collect();
        for index in gone {
            contents.pages.remove(&index);
            self.account.give_back_pages(1);
        }
    }

    fn zero(contents: &mut Contents, bytes: Range<u64>) {
        for place in bytes {
            if let Some(page) = contents.pages.get_mut(&(place / PAGE)) {
                page.bytes[(place % PAGE) as usize] = 0;
            }
        }
    }
}

/// A handle of them: the file's, or a mapping's.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Bytes>);

impl Deref for Handle {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl FileData for Handle {
    type Program = ();
    type Writing<'f> = ();

    fn writing(&self) -> Result<(), Error> {
        Ok(())
    }

    fn size(&self) -> u64 {
        self.contents().size
    }

    fn pages(&self) -> u64 {
        self.contents().pages.len() as u64
    }

    fn set_size(&self, size: u64) -> Result<(), Error> {
        let mut contents = self.contents();
        let before = std::mem::replace(&mut contents.size, size);
        // What `fallocate` made past the end stays only if the file becomes larger.
        if size <= before {
            Bytes::zero(&mut contents, size..size.next_multiple_of(PAGE));
            self.remove(&mut contents, size.div_ceil(PAGE)..u64::MAX);
        }
        Ok(())
    }

    fn punch(&self, bytes: Range<u64>, _program: Option<&()>) -> Result<(), Error> {
        let mut contents = self.contents();
        let (first, last) = (bytes.start.div_ceil(PAGE), bytes.end / PAGE);
        if first > last {
            Bytes::zero(&mut contents, bytes);
            return Ok(());
        }
        Bytes::zero(&mut contents, bytes.start..first * PAGE);
        Bytes::zero(&mut contents, last * PAGE..bytes.end);
        self.remove(&mut contents, first..last);
        Ok(())
    }

    fn allocate(&self, bytes: Range<u64>, _program: Option<&()>) -> Result<(), Error> {
        let mut contents = self.contents();
        let mut made = Vec::new();
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        for index in pages {
            match self.page(&mut contents, index) {
                Ok(true) => made.push(index),
                // One that an earlier call made is data from now on: so no failure removes it.
                Ok(false) => contents.pages.get_mut(&index).unwrap().has_data = true,
                Err(error) => {
                    made.into_iter().for_each(|index| self.remove(&mut contents, index..index + 1));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn seek(&self, at: u64, what: Seek) -> Option<u64> {
        let contents = self.contents();
        let has_data = |index: u64| contents.pages.get(&index).is_some_and(|page| page.has_data);
        let first = at / PAGE;
        match what {
            Seek::Data if has_data(first) => Some(at),
            Seek::Data => {
                let next = contents.pages.range(first..).find(|(_, page)| page.has_data);
                next.map(|(index, _)| index * PAGE).filter(|place| *place < contents.size)
            }
            Seek::Hole if !has_data(first) => Some(at),
            Seek::Hole => {
                let next = (first..).find(|index| !has_data(*index)).unwrap();
                Some((next * PAGE).min(contents.size))
            }
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.account.give_back_pages(self.contents().pages.len() as u64);
    }
}

/// What the file system of a test needs. Each look at the clock is a second later.
pub(crate) struct Files<'m> {
    memory: &'m HostMemory,
    clock: AtomicU64,
    /// The contents of files are kept here as if a program mapped them, if that is on.
    pub(crate) mapped: Mutex<Option<Vec<Handle>>>,
    /// If it is not 0, threads that look at the clock wait a while until it is 3, and each adds 1.
    pub(crate) meet: AtomicU64,
    /// Whether the next files are refused for want of memory.
    pub(crate) fails: AtomicU64,
}

impl<'m> Files<'m> {
    pub(crate) fn new(memory: &'m HostMemory) -> Self {
        let zero = || AtomicU64::new(0);
        Self { memory, clock: AtomicU64::new(1000), mapped: Mutex::new(None), meet: zero(), fails: zero() }
    }
}

impl Backend for Files<'_> {
    type Platform = HostPlatform;
    type Data = Handle;

    fn platform(&self) -> &HostPlatform {
        self.memory.platform()
    }

    fn now(&self) -> Time {
        if self.meet.load(Ordering::Relaxed) != 0 {
            self.meet.fetch_add(1, Ordering::Relaxed);
            let others = (0..100).take_while(|_| self.meet.load(Ordering::Relaxed) < 3);
            others.for_each(|_| std::thread::yield_now());
        }
        let seconds = self.clock.fetch_add(1, Ordering::Relaxed);
        Time { seconds: seconds.cast_signed(), nanoseconds: 0 }
    }

    fn create(&self, account: Account) -> Result<Handle, Error> {
        if self.fails.load(Ordering::Relaxed) > 0 {
            self.fails.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::NoMemory);
        }
        let contents = Mutex::new(Contents { size: 0, pages: BTreeMap::new() });
        let bytes = Handle(Arc::new(Bytes { contents, account }));
        if let Some(mapped) = &mut *self.mapped.lock().unwrap() {
            mapped.push(bytes.clone());
        }
        Ok(bytes)
    }
}

/// Runs `test` on a machine with `cpus` CPUs, as its CPU 0; it is audited at the end.
pub(crate) fn with_memory(cpus: usize, test: impl FnOnce(&HostMemory, &HostPlatform)) {
    let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(64 << 20).cpus(cpus)).unwrap();
    let shared = platform.clone();
    let memory = Memory::new(platform, MemoryConfig::default()).unwrap();
    let cpu = shared.vcpu(0).unwrap();
    test(&memory, &shared);
    drop(cpu);
}

/// Runs `test` on a file system, which is audited and dropped at the end: nothing stays in use.
pub(crate) fn with_fs(options: &Options, test: impl FnOnce(&TestFs<'_>)) {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = Tmpfs::new(&heap, Files::new(memory), options).unwrap();
        test(&fs);
        assert_sound(&fs);
    });
}

/// The audit finds nothing, and all that is in use is in the tree.
#[track_caller]
pub(crate) fn assert_sound(fs: &TestFs<'_>) {
    let mut findings = Vec::new();
    let found = quire_tmpfs::audit(fs, &mut |finding| findings.push(finding));
    assert_eq!(findings, []);
    assert_eq!(found, fs.usage(), "what is in the tree is not what is in use");
}

pub(crate) const EVERYWHERE: &dyn Fn(&Stat) -> bool = &|_| true;

/// The paths of a file system, from its root.
pub(crate) fn paths<'w, 't, 'm>(root: &'w TestNode<'t, 'm>) -> Walk<'w, 't, Files<'m>> {
    Walk { root, start: root, may_search: EVERYWHERE }
}

/// The names in a directory, in the order of a listing.
pub(crate) fn names(directory: &TestNode<'_, '_>) -> Vec<String> {
    let mut names = Vec::new();
    let end = directory.list(quire_tmpfs::FIRST, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    assert_eq!(end, Ok(quire_tmpfs::END));
    names.split_off(2)
}

/// A generator of random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
