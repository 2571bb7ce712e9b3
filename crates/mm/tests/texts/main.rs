//! Texts as in /proc and /sys.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod file_texts;
mod huge_files;
mod linux_format;
mod swap_texts;
mod texts;
