//! The same machine with Quire's heap as Rust's global allocator: boxes, vectors, maps and strings in a
//! program that has no other heap.
//!
//! It exits as the other program does.

#![no_std]
#![no_main]

extern crate alloc;

#[allow(dead_code, reason = "only the other program has programs that touch their memory")]
mod machine;
#[allow(dead_code, reason = "this program has one CPU")]
mod runtime;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::ptr;
use machine::Toy;
use quire_mm::frame::GlobalHeap;
use quire_mm::{Memory, MemoryConfig, proc};
use runtime::Output;

#[global_allocator]
static HEAP: GlobalHeap<Toy> = GlobalHeap::new();

/// Called by `_start`, on an aligned stack.
#[unsafe(no_mangle)]
extern "C" fn entry() -> ! {
    machine::become_cpu(0);
    let memory = Memory::new(Toy, MemoryConfig::default()).expect("16 MiB are enough to start");
    // SAFETY: this function never returns, so what it holds lives as long as the program.
    let memory: &'static Memory<Toy> = unsafe { &*ptr::from_ref(&memory) };
    HEAP.attach(memory.kernel_frames()).expect("room for the heap's caches");
    let before = memory.in_use();
    collections();
    assert_eq!(memory.in_use(), before, "objects or frames were lost");
    proc::slabinfo(memory, &mut Output(1)).expect("stdout");
    assert!(memory.audit(|violation| panic!("{violation}")).is_ok());
    runtime::exit(0)
}

/// What programs do with a heap, checked by what they find in it afterwards.
fn collections() {
    const COUNT: u64 = 10_007;
    let mut names = BTreeMap::new();
    for number in 0..COUNT {
        // Every number once, in no order: the factor and the prime have no divisor in common.
        names.insert(number * 7919 % COUNT, format!("the {number}th"));
    }
    assert!(names.iter().all(|(&key, name)| name_number(name) * 7919 % COUNT == key));
    names.retain(|key, _| key % 3 == 0);
    let grown: Vec<u64> = names.keys().copied().collect();
    assert!(grown.iter().zip((0..).step_by(3)).all(|(&key, number)| key == number));
    let large = Box::new([grown.len(); 2000]);
    assert!(large.iter().all(|&len| len == names.len()));
    // A mebibyte: more than any cache holds, and moved on the way there.
    let mut bytes = Vec::new();
    (0..1 << 20).for_each(|number: u32| bytes.push(number as u8));
    assert!(bytes.iter().zip(0..).all(|(&byte, number): (_, u32)| byte == number as u8));
}

fn name_number(name: &str) -> u64 {
    let digits = name.bytes().filter(u8::is_ascii_digit);
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}
