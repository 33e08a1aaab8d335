//! Compares a cached file with a model: random calls of one thread, and a vector of bytes. At the end the standard
//! library reads the file again.
//!
//! `RINGFILE_TEST_SEED` repeats a run, `RINGFILE_TEST_MODEL_STEPS` makes it longer.

use crate::support::Random;
use bytes::Bytes;
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, WhenPinned};

const LARGEST: usize = 1 << 20;

fn run(random: &mut Random, page_size: usize, is_direct: bool, steps: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut model = random.bytes(random.clone().index(LARGEST));
    std::fs::write(&path, &model).unwrap();
    let budget = 24 * page_size;
    let cache = Cache::builder(budget).when_pinned(WhenPinned::Fail).build().unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(is_direct).buffered_fallback(true);
    let pages = cache.open(options.open_blocking(&path).unwrap(), page_size).unwrap();
    let content = |model: &Vec<u8>, page: u64| {
        let start = (page as usize * page_size).min(model.len());
        model[start..(start + page_size).min(model.len())].to_vec()
    };
    let most = (LARGEST / page_size + 3) as u64;
    let mut kept: Vec<(Bytes, Vec<u8>)> = Vec::new();
    for _ in 0..steps {
        let page = random.below(most);
        match random.below(12) {
            0..3 => {
                let found = block_on(pages.read(page)).unwrap();
                assert_eq!(*found, content(&model, page), "page {page}");
                if kept.len() < 10 && random.chance(3) {
                    kept.push((found.into(), content(&model, page)));
                }
            }
            3 => {
                if let Some(found) = pages.get(page) {
                    assert_eq!(*found, content(&model, page), "page {page}");
                }
            }
            4 => {
                let numbers: Vec<u64> = (0..random.below(8)).map(|_| random.below(most)).collect();
                let found = block_on(pages.read_many(&numbers)).unwrap();
                assert!(found.iter().zip(numbers).all(|(found, page)| **found == content(&model, page)));
            }
            5 => {
                let (offset, len) = (random.index(LARGEST + 5000), random.index(5 * page_size));
                let found = block_on(pages.read_range(offset as u64, len)).unwrap();
                assert_eq!(found, model[offset.min(model.len())..(offset + len).min(model.len())]);
            }
            6 | 7 => {
                let data = random.bytes(page_size);
                block_on(pages.write(page, &data)).unwrap();
                let start = page as usize * page_size;
                model.resize(model.len().max(start + page_size), 0);
                model[start..start + page_size].copy_from_slice(&data);
            }
            8 if random.chance(4) => {
                let len = random.index(LARGEST);
                block_on(pages.truncate(len as u64)).unwrap();
                model.resize(len, 0);
            }
            9 => pages.invalidate(page..page + random.below(5)),
            10 => pages.prefetch(&[page, page + 1]),
            _ => {
                if !kept.is_empty() {
                    let (found, expected) = kept.swap_remove(random.index(kept.len()));
                    assert_eq!(found, expected, "it changed while it was used");
                }
            }
        }
        assert!(cache.metrics().bytes <= budget);
    }
    drop(kept);
    assert_eq!(pages.metrics().pinned, 0);
    assert_eq!(std::fs::read(&path).unwrap(), model);
}

#[test]
fn a_cached_file_is_what_a_vector_of_bytes_would_be() {
    let steps = std::env::var("RINGFILE_TEST_MODEL_STEPS").map_or(400, |steps| steps.parse().unwrap());
    let mut random = Random::new();
    for page_size in [4096, 16384, 131072] {
        for is_direct in [true, false] {
            run(&mut random, page_size, is_direct, steps);
        }
    }
}
