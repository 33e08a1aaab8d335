//! The compiled part of the Python package `ringfile`.
//!
//! `file` has the calls that wait, `event_loop` those of asyncio; both plan and finish a call in `call`. `drive` carries out
//! operations on the thread's own queue. `memory` is the only place that deals with Python's memory.

// What a macro makes of the functions here has no documentation of its own.
#![allow(missing_docs)]

use pyo3::prelude::*;

mod call;
mod drive;
mod error;
mod event_loop;
mod file;
mod fork;
mod info;
mod logging;
mod memory;

#[pymodule]
fn _ringfile(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::install();
    module.add_class::<file::PyFile>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<event_loop::Engine>()?;
    module.add_function(wrap_pyfunction!(file::open, module)?)?;
    module.add_function(wrap_pyfunction!(file::cat_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(memory::array_memory, module)?)?;
    module.add_function(wrap_pyfunction!(info::metrics, module)?)?;
    module.add_function(wrap_pyfunction!(info::describe, module)?)?;
    module.add_function(wrap_pyfunction!(info::cached, module)?)?;
    Ok(())
}
