//! The ways to write a file that is being read: in this process and another, buffered and directly.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use ringfile::{File, OpenOptions, Pool, block_on};

use super::{BLOCK, blocks};
use crate::support::{Folder, again};

/// The ways to write.
pub enum Writer {
    /// Writes through a file: the one that is read, another adaptive or buffered one, or a direct one.
    Own(File),
    Plain(std::fs::File),
    Process {
        child: Child,
        stream: UnixStream,
    },
}

const CHILD: &str = "RINGFILE_TEST_COHERENCE_CHILD";

impl Writer {
    pub fn process(folder: &Folder, path: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let socket = folder.path().join(format!("socket-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let listener = UnixListener::bind(&socket).unwrap();
        let child = again("the_process_that_writes")
            .env(CHILD, format!("{}\n{}", socket.display(), path.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stream = listener.accept().unwrap().0;
        Self::Process { child, stream }
    }

    pub fn direct(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .direct(true)
            .buffered_fallback(true)
            .open_blocking(path);
        Self::Own(file.unwrap())
    }

    pub fn plain(path: &Path) -> Self {
        Self::Plain(std::fs::OpenOptions::new().write(true).open(path).unwrap())
    }

    /// Writes whole blocks of one version, and returns when the write has returned.
    pub fn write(&mut self, first: usize, count: usize, version: u64) {
        let offset = (first * BLOCK) as u64;
        match self {
            Self::Own(file) => {
                let mut buffer = Pool::new(1 << 20).get(count * BLOCK).unwrap();
                buffer.extend_from_slice(&blocks(first, count, version));
                block_on(file.write_at(buffer, offset)).unwrap();
            }
            Self::Plain(file) => file.write_all_at(&blocks(first, count, version), offset).unwrap(),
            Self::Process { stream, .. } => {
                let order = [first as u64, count as u64, version].map(u64::to_le_bytes).concat();
                stream.write_all(&order).unwrap();
                stream.read_exact(&mut [0]).unwrap();
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Self::Process { child, stream } = self {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = child.wait();
        }
    }
}

/// Not a test: [`Writer::process`] starts it. Carries out the writes that it reads from its input, buffered and
/// directly in turn.
#[test]
fn the_process_that_writes() {
    let Ok(names) = std::env::var(CHILD) else { return };
    let (socket, path) = names.split_once('\n').unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut writers = [Writer::plain(Path::new(path)), Writer::direct(Path::new(path))];
    let mut order = [0; 24];
    while stream.read_exact(&mut order).is_ok() {
        let [first, count, version] =
            [0, 8, 16].map(|at| u64::from_le_bytes(order[at..at + 8].try_into().unwrap()));
        writers[version as usize % 2].write(first as usize, count as usize, version);
        stream.write_all(&[1]).unwrap();
    }
}
