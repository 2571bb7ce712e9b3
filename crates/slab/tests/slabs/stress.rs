//! Two threads, random orders, tags in every frame. Seeds are printed and replay.

use crate::support::*;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread;

const SEEDS: [u64; 3] = [1, 0x5eed, 0xfeed_f00d];
const STEPS: u64 = 30_000;

struct Block {
    pfn: Pfn,
    order: Order,
    tag: u64,
}

/// Writes `tag` to every frame of the block.
fn tag(frames: &Frames<Machine>, block: &Block) {
    for page in 0..block.order.pages() {
        let word = frames.platform().direct_map(block.pfn.offset(page)).cast::<u64>();
        // SAFETY: the block was just given out to this thread.
        unsafe { word.write(block.tag ^ page) };
    }
}

/// Fails if another thread wrote to the block.
fn check(frames: &Frames<Machine>, block: &Block) {
    for page in 0..block.order.pages() {
        let word = frames.platform().direct_map(block.pfn.offset(page)).cast::<u64>();
        // SAFETY: the block belongs to this thread.
        let found = unsafe { word.read() };
        assert_eq!(found, block.tag ^ page, "{:?} was given out twice", block.pfn.offset(page));
    }
}

type Object = [u64; 20];

/// Objects on their way to the other thread.
struct Parcel(NonNull<Object>, u64);

// SAFETY: the object belongs to the thread that holds the parcel.
unsafe impl Send for Parcel {}

struct Exchange {
    blocks: Mutex<Vec<Block>>,
    objects: Mutex<Vec<Parcel>>,
}

fn worker(frames: &Frames<Machine>, cache: &SlabCache<Object, Machine>, seed: u64, exchange: &Exchange) {
    let mut random = Random(seed);
    let mut blocks: Vec<Block> = Vec::new();
    let mut objects: Vec<Parcel> = Vec::new();
    for step in 0..STEPS {
        match random.below(16) {
            0..=5 => {
                let order = order([0, 0, 0, 0, 1, 2, 3, 5, 9, 10][random.below(10) as usize]);
                let migratetype = Migratetype::PCP_TYPES[random.below(3) as usize];
                let request = AllocRequest::new(order, TEST).movability(migratetype);
                let pin = frames.platform().pin();
                if let Ok(pfn) = frames.allocate(&pin, request) {
                    let block = Block { pfn, order, tag: seed << 32 | step };
                    tag(frames, &block);
                    blocks.push(block);
                }
            }
            6..=8 if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                check(frames, &block);
                let pin = frames.platform().pin();
                frames.free(&pin, block.pfn, block.order).unwrap();
            }
            9 => {
                let mut chain = FrameChain::new();
                for block in blocks.drain(blocks.len() / 2..) {
                    check(frames, &block);
                    frames.gather(&mut chain, block.pfn, block.order).unwrap();
                }
                let pin = frames.platform().pin();
                frames.free_chain(&pin, chain);
            }
            10 if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                check(frames, &block);
                frames.known(block.pfn).classify(Kind::Table).unwrap();
                let pin = frames.platform().pin();
                frames.limbo().retire(&pin, block.pfn, block.order).unwrap();
            }
            11 => {
                // Swap with the other thread: allocate here, free there.
                std::mem::swap(&mut blocks, &mut exchange.blocks.lock().unwrap());
                std::mem::swap(&mut objects, &mut exchange.objects.lock().unwrap());
            }
            12 if step % 64 == 0 => {
                let pin = frames.platform().pin();
                frames.pcp().drain_all(&pin);
                frames.limbo().reap_all(&pin);
                frames.caches().reap(&pin);
            }
            13..=14 => {
                let pin = frames.platform().pin();
                let value = seed << 32 | step;
                if let Ok(object) = cache.allocate(frames, &pin, [value; 20]) {
                    objects.push(Parcel(object, value));
                }
            }
            _ => {
                let pin = frames.platform().pin();
                let reader = frames.epoch().enter(&pin);
                for Parcel(object, value) in objects.drain(objects.len() / 2..) {
                    // SAFETY: the object is this thread's.
                    unsafe {
                        assert_eq!(object.read(), [value; 20], "an object was given out twice");
                        if value % 2 == 0 {
                            cache.free(frames, &pin, object);
                        } else {
                            cache.retire(frames, &pin, object);
                        }
                    }
                }
                drop(reader);
            }
        }
    }
    exchange.blocks.lock().unwrap().append(&mut blocks);
    exchange.objects.lock().unwrap().append(&mut objects);
}

fn stress(frames: &Frames<Machine>, cpus: [usize; 2], seed: u64) {
    std::println!("seed {seed:#x}, CPUs {cpus:?}");
    let cache = {
        run_on(0);
        SlabCache::new(frames, &frames.platform().pin(), "parcel").unwrap()
    };
    let before = frames.reports().free_frames();
    let exchange = Exchange { blocks: Mutex::new(Vec::new()), objects: Mutex::new(Vec::new()) };
    thread::scope(|scope| {
        for (number, cpu) in cpus.into_iter().enumerate() {
            let (cache, exchange) = (&cache, &exchange);
            scope.spawn(move || {
                run_on(cpu);
                worker(frames, cache, seed + number as u64, exchange);
            });
        }
    });
    let pin = frames.platform().pin();
    assert_sound(frames);
    for block in exchange.blocks.into_inner().unwrap() {
        check(frames, &block);
        frames.free(&pin, block.pfn, block.order).unwrap();
    }
    for Parcel(object, value) in exchange.objects.into_inner().unwrap() {
        // SAFETY: no other thread has the object any more.
        unsafe {
            assert_eq!(object.read(), [value; 20]);
            cache.free(frames, &pin, object);
        }
    }
    frames.limbo().reap_all(&pin);
    cache.shrink(frames, &pin);
    frames.pcp().drain_all(&pin);
    assert_sound(frames);
    assert_eq!(frames.reports().free_frames(), before);
}

#[test]
fn two_cpus_with_and_without_lists() {
    for pcp in PcpTechnique::ALL {
        for seed in SEEDS {
            let frames = frames_of(Machine::new(&[(3, 5000), (6001, 16384)], 2), pcp);
            stress(&frames, [0, 1], seed);
        }
    }
}

#[test]
fn two_threads_share_one_cpu() {
    for seed in SEEDS {
        let frames = frames_of(Machine::new(&[(0, 8192)], 1).shared(), PcpTechnique::All);
        stress(&frames, [0, 0], seed);
    }
}

/// Memory is nearly always full, over two zones.
#[test]
fn memory_runs_out_all_the_time() {
    let border = 1 << 20;
    for seed in SEEDS {
        let machine = Machine::new(&[(border - 700, border + 900)], 2);
        stress(&frames_of(machine, PcpTechnique::All), [0, 1], seed);
    }
}
