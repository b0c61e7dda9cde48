#include "packed_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

namespace headway {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;
constexpr size_t kNameBytes = 80;
constexpr uint32_t kFileVersion = 1;
constexpr char kMagic[8] = {'H', 'W', 'P', 'A', 'C', 'K', 'E', 'D'};

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t entries;
  uint64_t size;      // of the file
  uint64_t checksum;  // of what follows the head
  char key[96];
};
static_assert(sizeof(Head) == 128);

struct Entry {
  char name[kNameBytes];
  PackedHeader header;
  uint64_t offset;
};
static_assert(sizeof(Entry) == 112);

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Damage done by disks and cut writes, not by people: eight chains of multiplications, as fast as
// memory.
class Checksum {
 public:
  // A multiple of 64 bytes.
  void add(const uint8_t* bytes, size_t size) {
    for (size_t at = 0; at < size; at += kAlignment) {
      for (size_t i = 0; i < 8; ++i) {
        uint64_t word;
        std::memcpy(&word, bytes + at + 8 * i, 8);
        const uint64_t mixed = (lanes_[i] ^ word) * 0x9E3779B97F4A7C15ULL;
        lanes_[i] = mixed << 29 | mixed >> 35;
      }
    }
  }
  uint64_t value() const {
    uint64_t all = 0;
    for (const uint64_t lane : lanes_) all = (all ^ lane) * 0xFF51AFD7ED558CCDULL + (all >> 31);
    return all;
  }

 private:
  uint64_t lanes_[8] = {1, 2, 3, 4, 5, 6, 7, 8};
};

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Collects pieces and writes them in whole huge pages: the kernel makes its folios as large as the
// writes are.
class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path + ".XXXXXX"), buffer_(kBuffer) {
    file_ = mkstemp(path_.data());
    if (file_ < 0) fail("create");
  }
  ~Writer() {
    if (file_ < 0) return;
    close(file_);
    unlink(path_.c_str());
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void add(const void* bytes, size_t size) {
    const auto* from = static_cast<const uint8_t*>(bytes);
    while (size > 0) {
      const size_t part = std::min(size, kBuffer - filled_);
      std::memcpy(buffer_.data() + filled_, from, part);
      filled_ += part;
      from += part;
      size -= part;
      if (filled_ == kBuffer) flush();
    }
  }
  void pad_to(size_t offset) {
    const std::vector<uint8_t> zeros(offset - (flushed_ + filled_));
    add(zeros.data(), zeros.size());
  }
  // What was added so far begins with `head`, which comes last.
  void finish(Head head, const std::string& path) {
    flush();
    head.checksum = checksum_.value();
    write_at(&head, sizeof head, 0);
    if (fsync(file_) != 0) fail("fsync");
    if (rename(path_.c_str(), path.c_str()) != 0) fail("rename");
    close(file_);
    file_ = -1;
  }

 private:
  static constexpr size_t kBuffer = 2 * kHugePage;

  void flush() {
    const size_t head = flushed_ == 0 ? sizeof(Head) : 0;
    checksum_.add(buffer_.data() + head, filled_ - head);
    write_at(buffer_.data(), filled_, flushed_);
    flushed_ += filled_;
    filled_ = 0;
  }
  void write_at(const void* bytes, size_t size, size_t offset) {
    const auto* from = static_cast<const uint8_t*>(bytes);
    while (size > 0) {
      const ssize_t done = pwrite(file_, from, size, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail("write");
      from += done;
      size -= static_cast<size_t>(done);
      offset += static_cast<size_t>(done);
    }
  }

  std::string path_;
  int file_ = -1;
  std::vector<uint8_t> buffer_;
  size_t filled_ = 0, flushed_ = 0;
  Checksum checksum_;
};

void put_text(char* to, size_t room, const std::string& text) {
  if (text.size() >= room) throw std::length_error("a name is too long: " + text);
  std::memcpy(to, text.c_str(), text.size());
}

// Text and the zeros behind it.
bool is_text(const char* at, size_t room, const std::string& text) {
  return text.size() < room && std::memcmp(at, text.data(), text.size()) == 0 &&
         std::all_of(at + text.size(), at + room, [](char c) { return c == 0; });
}

bool same(const PackedHeader& a, const PackedHeader& b) {
  return a.version == b.version && a.type == b.type && a.interleaved == b.interleaved &&
         a.rows == b.rows && a.cols == b.cols;
}

// A mapping that begins on a huge page's boundary; null where there can be none.
void* mmap_aligned(size_t size, int protection, int flags, int file) {
  const size_t room = round_up(size, kHugePage) + kHugePage;
  void* const reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<uint8_t*>(reserved);
  auto* const at =
      reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(begin), kHugePage));
  if (mmap(at, size, protection, flags | MAP_FIXED, file, 0) == MAP_FAILED) {
    munmap(reserved, room);
    return nullptr;
  }
  uint8_t* const end = at + round_up(size, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  if (at > begin) munmap(begin, static_cast<size_t>(at - begin));
  if (begin + room > end) munmap(end, static_cast<size_t>(begin + room - end));
  return at;
}

#if defined(__linux__)
constexpr size_t kWorthCopying = size_t{16} << 20;
constexpr double kMostlyHuge = 0.9;

// The number behind a name, in lines such as "MemAvailable:  1024 kB", in bytes; 0 for none.
size_t kib_of(const std::string& line, const std::string& name) {
  if (line.rfind(name, 0) != 0) return 0;
  return static_cast<size_t>(std::strtoull(line.c_str() + name.size(), nullptr, 10)) << 10;
}

size_t available_bytes() {
  std::ifstream lines("/proc/meminfo");
  size_t bytes = 0;
  for (std::string line; bytes == 0 && std::getline(lines, line);)
    bytes = kib_of(line, "MemAvailable:");
  return bytes;
}

// Of the mapping that begins at an address: how much of it is in huge pages. All, where the system
// doesn't say.
double huge_bytes(const void* at) {
  std::ifstream lines("/proc/self/smaps");
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(at) << '-';
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    found = found || line.rfind(start.str(), 0) == 0;
    if (found && line.rfind("FilePmdMapped:", 0) == 0)
      return static_cast<double>(kib_of(line, "FilePmdMapped:"));
  }
  return HUGE_VAL;
}
#endif

void write_file(const std::string& path, const std::string& key,
                const std::vector<std::pair<std::string, PackedMatrix>>& matrices) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kFileVersion;
  head.entries = static_cast<uint32_t>(matrices.size());
  put_text(head.key, sizeof head.key, key);
  std::vector<Entry> entries(matrices.size());
  size_t end = round_up(sizeof(Head) + entries.size() * sizeof(Entry), kHugePage);
  for (size_t i = 0; i < matrices.size(); ++i) {
    put_text(entries[i].name, kNameBytes, matrices[i].first);
    entries[i].header = matrices[i].second.header();
    entries[i].offset = end;
    end = round_up(end + matrices[i].second.bytes(), kAlignment);
  }
  head.size = end;
  Writer writer(path);
  writer.add(&head, sizeof head);
  writer.add(entries.data(), entries.size() * sizeof(Entry));
  for (size_t i = 0; i < matrices.size(); ++i) {
    writer.pad_to(entries[i].offset);
    writer.add(matrices[i].second.data(), matrices[i].second.bytes());
  }
  writer.pad_to(end);
  writer.finish(head, path);
}

}  // namespace

std::shared_ptr<const PackedFile> PackedFile::open(const std::string& path,
                                                   const std::string& key) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  const std::shared_ptr<PackedFile> packed(new PackedFile);
  const bool mapped = packed->map(file);
  close(file);
  if (!mapped || !packed->whole(key)) return nullptr;
  packed->copy_unless_huge();
  return packed;
}

void PackedFile::copy_unless_huge() {
#if defined(__linux__)
  if (size_ < kWorthCopying || huge_bytes(data_) >= kMostlyHuge * static_cast<double>(size_) ||
      available_bytes() < 2 * size_)
    return;
  void* const copy = mmap_aligned(size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (copy == nullptr) return;
  madvise(copy, size_, MADV_HUGEPAGE);
  std::memcpy(copy, data_, size_);
  mprotect(copy, size_, PROT_READ);
  munmap(const_cast<uint8_t*>(data_), size_);
  data_ = static_cast<const uint8_t*>(copy);
#endif
}

// At an address whose huge pages are those of the file.
bool PackedFile::map(int file) {
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size < static_cast<off_t>(sizeof(Head))) return false;
  size_ = static_cast<size_t>(status.st_size);
  void* const at = mmap_aligned(size_, PROT_READ, MAP_SHARED, file);
  if (at == nullptr) return false;
  data_ = static_cast<const uint8_t*>(at);
#if defined(__linux__)
  madvise(at, size_, MADV_HUGEPAGE);  // wishes both
  madvise(at, size_, MADV_WILLNEED);
#endif
  return true;
}

PackedFile::~PackedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

bool PackedFile::whole(const std::string& key) const {
  Head head;
  std::memcpy(&head, data_, sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || head.version != kFileVersion ||
      head.size != size_ || size_ % kAlignment != 0 || !is_text(head.key, sizeof head.key, key) ||
      head.entries > (size_ - sizeof(Head)) / sizeof(Entry))
    return false;
  Checksum sum;
  sum.add(data_ + sizeof(Head), size_ - sizeof(Head));
  return sum.value() == head.checksum;
}

bool PackedFile::find(const std::string& name, const PackedHeader& header,
                      PackedMatrix& out) const {
  Head head;
  std::memcpy(&head, data_, sizeof head);
  for (uint32_t i = 0; i < head.entries; ++i) {
    Entry entry;
    std::memcpy(&entry, data_ + sizeof(Head) + i * sizeof(Entry), sizeof entry);
    if (!is_text(entry.name, kNameBytes, name)) continue;
    const size_t bytes = packed_bytes(header);
    if (!same(entry.header, header) || entry.offset % kAlignment != 0 || entry.offset > size_ ||
        bytes > size_ - entry.offset)
      return false;
    out = PackedMatrix(header, data_ + entry.offset, shared_from_this());
    return true;
  }
  return false;
}

PackedStore::PackedStore(std::string path, std::string key)
    : path_(std::move(path)), key_(std::move(key)) {
  if (!path_.empty()) file_ = PackedFile::open(path_, key_);
}

PackedMatrix PackedStore::get(const std::string& name, const PackedHeader& header,
                              const std::function<PackedMatrix()>& make) {
  PackedMatrix matrix;
  if (file_ == nullptr || !file_->find(name, header, matrix)) {
    made_ = true;
    matrix = make();
  }
  if (!path_.empty()) matrices_.emplace_back(name, matrix);
  return matrix;
}

void PackedStore::finish() {
  if (made_ && !path_.empty()) {
    try {
      write_file(path_, key_, matrices_);
    } catch (const std::exception& e) {
      problem_ = e.what();
    }
  }
  matrices_.clear();
}

}  // namespace headway
