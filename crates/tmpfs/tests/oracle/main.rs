//! The same random calls on the host's tmpfs and on Quire's: results, errors, `stat`, listings, contents,
//! what is in use.
//!
//! `QUIRE_SEED=n` starts the seeds at `n`.

#![cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models of whole machines have no host's tmpfs"))]
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(not(any(loom, shuttle)))]
#[path = "../common/mod.rs"]
mod common;
#[cfg(not(any(loom, shuttle)))]
mod compare;
#[cfg(not(any(loom, shuttle)))]
mod linux;
#[cfg(not(any(loom, shuttle)))]
mod op;
#[cfg(not(any(loom, shuttle)))]
mod quire;
#[cfg(not(any(loom, shuttle)))]
mod times;

#[cfg(not(any(loom, shuttle)))]
fn main() {
    match linux::enter_own_tmpfs() {
        Ok(()) => {
            compare::calls_have_linux_s_results();
            compare::listings_have_linux_s_order();
            times::times_change_as_in_linux();
        }
        Err(error) => println!("the host's tmpfs is not compared: {error}"),
    }
}

#[cfg(any(loom, shuttle))]
fn main() {}
