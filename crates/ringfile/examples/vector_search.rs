//! A disk reader as vector search engines have it: `cargo run --example vector_search`.
//!
//! The engine's trait gets a list of offsets, each with memory of the engine's own, and must fill all of them before it
//! returns. No copies, and no `unsafe`.

use std::io::{Error, ErrorKind, Result};

use ringfile::queue::ReadRequest;
use ringfile::{File, Queue};

/// The engine's trait.
trait AlignedReader {
    /// Fills each slice with the bytes of the file from its offset on.
    fn read(&mut self, wanted: &mut [(u64, &mut [u8])]) -> Result<()>;
}

struct Reader {
    file: File,
    queue: Queue,
}

impl AlignedReader for Reader {
    fn read(&mut self, wanted: &mut [(u64, &mut [u8])]) -> Result<()> {
        let mut requests: Vec<_> =
            wanted.iter_mut().map(|(offset, memory)| ReadRequest::new(&mut **memory, *offset)).collect();
        self.queue.read_many(&self.file, &mut requests)?;
        for ReadRequest { buffer, result, .. } in requests {
            if result? < buffer.len() {
                return Err(Error::new(ErrorKind::UnexpectedEof, "the file ends inside a node"));
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("index");
    std::fs::write(&path, (0..256_u32).flat_map(|node| [node as u8; 4096]).collect::<Vec<_>>())?;

    let mut reader = Reader { file: File::open_blocking(&path)?, queue: Queue::new() };
    let mut beam = vec![0; 32 * 4096];
    let nodes: Vec<u8> = (0..32_u8).map(|step| step.wrapping_mul(37)).collect();
    let mut wanted: Vec<_> =
        nodes.iter().zip(beam.chunks_mut(4096)).map(|(&node, page)| (u64::from(node) * 4096, page)).collect();
    reader.read(&mut wanted)?;
    for (&node, page) in nodes.iter().zip(beam.chunks(4096)) {
        assert_eq!(page, [node; 4096]);
    }
    let mut behind = [0; 4096];
    assert!(reader.read(&mut [(256 * 4096, &mut behind[..])]).is_err(), "the file has 256 nodes");
    println!("{} nodes read", nodes.len());
    Ok(())
}
