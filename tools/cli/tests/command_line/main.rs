//! The command line: arguments, output, exit codes.

mod advise;
mod cli;
mod lab;
mod output;
mod schema;
