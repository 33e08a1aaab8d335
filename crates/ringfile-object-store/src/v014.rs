//! The trait of object_store 0.14.

use object_store_014 as api;

#[path = "adapter.rs"]
mod adapter;

use api::local::LocalFileSystem;
use api::path::Path;
use api::{Attributes, Extensions, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};

/// Returns an ETag as this version's `LocalFileSystem` writes it.
fn etag(middle: String) -> String {
    format!("\"{middle}\"")
}

fn put_result(middle: String) -> PutResult {
    PutResult { e_tag: Some(etag(middle)), version: None, extensions: Extensions::default() }
}

fn get_result(payload: GetResultPayload, meta: ObjectMeta, range: std::ops::Range<u64>) -> GetResult {
    GetResult { payload, meta, range, attributes: Attributes::default(), extensions: Extensions::default() }
}

fn list_result(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects, extensions: Extensions::default() }
}

/// Checks paths.
fn local(store: &crate::RingfileStore) -> &LocalFileSystem {
    &store.local_014
}
pub(crate) use adapter::make_local;
