package ringfile_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringfile"
)

// The passages of the README, which TestPassages looks for in this file, in a folder with a file data.bin.
func readPassage(ctx context.Context, use func([]byte)) error {
	pool, err := ringfile.NewPool(64 << 20) // aligned, registered memory
	file, err := ringfile.Open("data.bin", ringfile.Options{Direct: true})
	buffer, err := pool.Get(2 * 4096)
	defer buffer.Release()

	reads := []ringfile.Read{
		{Buffer: buffer, Start: 0, Length: 4096, Offset: 0},
		{Buffer: buffer, Start: 4096, Length: 4096, Offset: 1 << 20},
	}
	err = file.ReadBatch(ctx, reads) // each read has its own N and Err
	use(buffer.Bytes()[:reads[0].N])
	return err
}

func writePassage(ctx context.Context, buffer *ringfile.Buffer) error {
	file, err := ringfile.Open("data.bin", ringfile.Options{Direct: true, Write: true, Create: true})
	writes := []ringfile.Write{
		{Buffer: buffer, Start: 0, Length: 4096, Offset: 0},
		{Buffer: buffer, Start: 4096, Length: 4096, Offset: 1 << 20},
	}
	err = file.WriteBatch(ctx, writes) // each write has its own N and Err
	if err == nil {
		err = file.SyncData(ctx) // durable now
	}
	return err
}

func appendPassage(ctx context.Context, valid int64, record []byte) (int64, error) {
	file, err := ringfile.Open("log", ringfile.Options{Direct: true, Write: true, Create: true})
	log, err := ringfile.OpenAppender(file, valid, ringfile.AppenderOptions{}) // valid: the length that is known to be whole
	offset, err := log.Append(record)                                          // copied; any length and address
	if err == nil {
		err = log.Sync(ctx) // durable now
	}
	return offset, err
}

func TestPassages(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	must(t, err)
	source, err := os.ReadFile("example_test.go")
	must(t, err)
	lines := func(text string) string {
		var all []string
		for _, line := range strings.Split(text, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				all = append(all, line)
			}
		}
		return strings.Join(all, "\n")
	}
	passages := strings.Split(string(readme), "```go\n")[1:]
	for _, passage := range passages {
		passage = strings.Split(passage, "```")[0]
		if !strings.Contains(lines(string(source)), lines(passage)) {
			t.Fatalf("this passage of the README is not in example_test.go:\n%s", passage)
		}
	}
	if len(passages) != 3 {
		t.Fatalf("%d passages", len(passages))
	}

	_, path := makeWritable(t, ringfile.Options{})
	before, err := os.Getwd()
	must(t, err)
	must(t, os.Chdir(filepath.Dir(path)))
	defer os.Chdir(before)
	buffer := get(t, makePool(t, 1<<20), 2*block)
	copy(buffer.Bytes(), content(0, 2*block))
	must(t, writePassage(background, buffer))
	want := make([]byte, 1<<20+block)
	copy(want, content(0, block))
	copy(want[1<<20:], content(block, block))
	expectContent(t, "data.bin", want)
	must(t, readPassage(background, func(got []byte) {
		if !bytes.Equal(got, want[:block]) {
			t.Fatal("other bytes than were written")
		}
	}))
	at, err := appendPassage(background, 0, content(0, 100))
	must(t, err)
	got, err := os.ReadFile("log")
	must(t, err)
	if at != 0 || !bytes.HasPrefix(got, content(0, 100)) {
		t.Fatalf("the record at %d is not in the log", at)
	}
}
