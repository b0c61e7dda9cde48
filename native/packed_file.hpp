// Packed matrices of a model in one file that later processes map instead of packing again.
//
//   [ head | entries | zeros to 2 MiB | matrices, each aligned to 64 bytes ]
//
// The head holds a checksum of all that follows, and the key says whose weights they are. A file
// that is not whole, not ours or of another version counts as none. It is written under a name of
// its own and renamed, so that processes may write at once and a reader never sees half of it.
// Matrices start on a huge page's boundary: where the file system keeps large folios, the kernel
// maps them as huge pages, as it does for memory of our own. Where it has not, they are copied into
// such memory, if there is enough of it: each pass over the weights gains more than that takes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gemm/gemm.hpp"

namespace headway {

// A whole file, mapped and checked. Immutable.
class PackedFile : public std::enable_shared_from_this<PackedFile> {
 public:
  // Null where there is no such file or it can't be used.
  static std::shared_ptr<const PackedFile> open(const std::string& path, const std::string& key);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  // Whether there is such a matrix, packed as the header says; `out` then shares its bytes.
  bool find(const std::string& name, const PackedHeader& header, PackedMatrix& out) const;

 private:
  PackedFile() = default;
  bool map(int file);
  bool whole(const std::string& key) const;
  void copy_unless_huge();

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Where a model's matrices come from: the file, or the packer, and then the file is written.
class PackedStore {
 public:
  // An empty path: no file.
  PackedStore(std::string path, std::string key);

  PackedMatrix get(const std::string& name, const PackedHeader& header,
                   const std::function<PackedMatrix()>& make);

  // To be called once, after the last matrix. Writes the file unless all came from it; what keeps
  // it from being written is no error of the model's, and becomes `problem`.
  void finish();

  // Whether every matrix so far came from the file.
  bool mapped() const { return file_ != nullptr && !made_; }
  const std::string& problem() const { return problem_; }

 private:
  std::string path_, key_, problem_;
  std::shared_ptr<const PackedFile> file_;
  bool made_ = false;
  std::vector<std::pair<std::string, PackedMatrix>> matrices_;
};

}  // namespace headway
