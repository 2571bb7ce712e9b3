//! Threads of the host as the machine uses them: std's, or shuttle's where a model runs.
//!
//! Loom's models use none of this: they are of the door alone, and bring threads of their own.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock},
    thread::yield_now,
    thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, RwLock},
    thread::yield_now,
    thread_local,
};
