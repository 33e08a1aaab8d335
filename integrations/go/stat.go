package ringfile

// #include "shim.h"
import "C"

import (
	"io/fs"
	"math"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// FileInfo is the metadata of a file. It implements fs.FileInfo.
type FileInfo struct {
	// Allocated is the storage that the file occupies, in bytes: less than its size if it has holes.
	Allocated int64
	// Inode is the inode number, unique within the file system, which Device names.
	Inode, Device uint64
	// Links is the number of hard links: 0 if the file was removed.
	Links uint32
	// UID and GID are the file's owner and group.
	UID, GID uint32
	// Accessed is the time of the last access, and Changed that of the last change of content or metadata.
	Accessed, Changed time.Time
	// Created is the time of creation; the zero time if the file system does not record it.
	Created time.Time

	name     string
	size     int64
	mode     fs.FileMode
	modified time.Time
}

var _ fs.FileInfo = (*FileInfo)(nil)

// Name returns the last part of the path by which the file was opened.
func (i *FileInfo) Name() string { return i.name }

// Size returns the file's size in bytes.
func (i *FileInfo) Size() int64 { return i.size }

// Mode returns the kind of file, and its permissions.
func (i *FileInfo) Mode() fs.FileMode { return i.mode }

// ModTime returns the time of the last change of the content.
func (i *FileInfo) ModTime() time.Time { return i.modified }

// IsDir reports whether it is a directory.
func (i *FileInfo) IsDir() bool { return i.mode.IsDir() }

// Sys returns nil: the fields have what there is.
func (i *FileInfo) Sys() any { return nil }

// Stat returns the file's metadata, also if it was renamed or removed. It blocks an OS thread.
func (f *File) Stat() (*FileInfo, error) {
	var found C.ringfile_metadata
	found.size = C.size_t(unsafe.Sizeof(found))
	if _, err := check(func() int64 { return int64(C.ringfile_run(C.ringfile_op_stat(f.handle, &found))) }); err != nil {
		return nil, err
	}
	return &FileInfo{
		Allocated: int64(found.allocated),
		Inode:     uint64(found.inode),
		Device:    uint64(found.device),
		Links:     uint32(found.links),
		UID:       uint32(found.uid),
		GID:       uint32(found.gid),
		Accessed:  timeOf(found.accessed),
		Changed:   timeOf(found.changed),
		Created:   timeOf(found.created),
		name:      filepath.Base(f.path),
		size:      int64(found.length),
		mode:      modeOf(uint32(found.mode)),
		modified:  timeOf(found.modified),
	}, nil
}

// timeOf returns the time that C passes as nanoseconds since 1970.
func timeOf(nanoseconds C.int64_t) time.Time {
	if nanoseconds == math.MinInt64 {
		return time.Time{}
	}
	return time.Unix(0, int64(nanoseconds))
}

// modeOf returns Go's form of an st_mode.
func modeOf(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	switch bits & syscall.S_IFMT {
	case syscall.S_IFDIR:
		mode |= fs.ModeDir
	case syscall.S_IFLNK:
		mode |= fs.ModeSymlink
	case syscall.S_IFBLK:
		mode |= fs.ModeDevice
	case syscall.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		mode |= fs.ModeSocket
	}
	for _, bit := range []struct {
		bits uint32
		mode fs.FileMode
	}{{syscall.S_ISUID, fs.ModeSetuid}, {syscall.S_ISGID, fs.ModeSetgid}, {syscall.S_ISVTX, fs.ModeSticky}} {
		if bits&bit.bits != 0 {
			mode |= bit.mode
		}
	}
	return mode
}
