#include "ipc/shm_region.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "ipc/process.h"
#include "ipc/shm_space.h"

namespace baton {
namespace {

namespace bip = boost::interprocess;

constexpr const char* kShmFolder = "/dev/shm";
// No hexadecimal digits.
constexpr char kHostPart = 'h';
constexpr char kLeased = 'k';
constexpr char kProgress = 'p';

std::string mib(std::uint64_t bytes) { return std::to_string((bytes + (1U << 20U) - 1) >> 20U); }

Status no_space(const std::string& name, std::size_t bytes) {
  struct statvfs info {};
  const std::uint64_t have =
      ::statvfs(kShmFolder, &info) == 0 ? std::uint64_t{info.f_bavail} * info.f_frsize : 0;
  return Status(ErrorCode::kv_exhausted,
                "shared memory '" + name + "' needs " + mib(bytes) + " MiB, " + kShmFolder +
                    " has " + mib(have) +
                    " MiB free: lower pool_mib, or enlarge it (docker: shm_size)");
}

Status failed(const std::string& what, const std::string& name, const char* why) {
  return Status(ErrorCode::unavailable, what + " shared memory '" + name + "': " + why);
}

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return std::string(digits.data(), end);
}

/// Takes the memory that is not there yet; what is there stays as it is.
Status take_pages(int fd, const std::string& name, std::size_t bytes) {
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  }
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) {
    return no_space(name, bytes);
  }
  return error == 0 ? Status() : failed("cannot allocate", name, std::strerror(error));
}

Status check_size(const bip::shared_memory_object& object, const std::string& name,
                  std::size_t expected_bytes) {
  bip::offset_t size = 0;
  if (object.get_size(size) && size > 0 && std::in_range<std::size_t>(size) &&
      static_cast<std::size_t>(size) == expected_bytes) {
    return {};
  }
  return invalid("shared memory '" + name + "' has " + std::to_string(size) + " bytes, not " +
                 std::to_string(expected_bytes));
}

std::string prefix_of(const std::string& run_dir) { return shm_space(run_dir) + "-"; }

/// Cuts what follows the last '-' off `text` and reads it as a number; false if that is no number.
template <typename T>
bool cut_number(std::string_view& text, T& value, int base = 10) {
  const std::size_t dash = text.rfind('-');
  if (dash == std::string_view::npos) {
    return false;
  }
  const std::string_view digits = text.substr(dash + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  text = text.substr(0, dash);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

/// The worker's name may hold '-' itself, so the numbers are read from the end.
bool parse_name(std::string_view file, std::string_view prefix, RegionName& owner) {
  if (file.substr(0, prefix.size()) != prefix) {
    return false;
  }
  std::string_view rest = file.substr(prefix.size());
  owner.progress = rest.ends_with(kProgress);
  if (owner.progress) {
    rest.remove_suffix(1);
  }
  owner.host_part = rest.ends_with(kHostPart);
  if (owner.host_part) {
    rest.remove_suffix(1);
  }
  owner.leased = rest.ends_with(kLeased);
  if (owner.leased) {
    rest.remove_suffix(1);
  }
  if (!cut_number(rest, owner.allocation, 16) || !cut_number(rest, owner.pid_start) ||
      !cut_number(rest, owner.pid) || rest.empty()) {
    return false;
  }
  owner.worker = std::string(rest);
  return true;
}

std::vector<RegionName> regions_of(const std::string& prefix) {
  std::vector<RegionName> found;
  DIR* folder = ::opendir(kShmFolder);
  if (folder == nullptr) {
    return found;
  }
  while (const dirent* entry = ::readdir(folder)) {
    RegionName owner;
    if (parse_name(entry->d_name, prefix, owner)) {
      found.push_back(std::move(owner));
    }
  }
  ::closedir(folder);
  return found;
}

std::string name_in(const std::string& prefix, const RegionName& owner) {
  return prefix + owner.worker + "-" + std::to_string(owner.pid) + "-" +
         std::to_string(owner.pid_start) + "-" + hex(owner.allocation) +
         (owner.leased ? std::string(1, kLeased) : std::string()) +
         (owner.host_part ? std::string(1, kHostPart) : std::string()) +
         (owner.progress ? std::string(1, kProgress) : std::string());
}

}  // namespace

struct ShmRegion::Impl {
  std::string name;
  bip::mapped_region region;
  bool owner = false;  // unlinks the name
  bool writable = false;

  ~Impl() {
    if (owner) {
      unlink_region(name);
    }
  }
};

ShmRegion::ShmRegion() = default;
ShmRegion::~ShmRegion() = default;
ShmRegion::ShmRegion(ShmRegion&&) noexcept = default;
ShmRegion& ShmRegion::operator=(ShmRegion&&) noexcept = default;
ShmRegion::ShmRegion(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<ShmRegion> ShmRegion::create(const std::string& name, std::size_t bytes,
                                    ShmOptions options) {
  if (bytes == 0) {
    return invalid("shared memory '" + name + "' of 0 bytes");
  }
  if (Status held = hold_shm_space(name); !held.ok()) return held;
  auto impl = std::make_unique<Impl>();
  try {
    bip::shared_memory_object object(bip::create_only, name.c_str(), bip::read_write,
                                     bip::permissions(0600));
    impl->name = name;
    impl->owner = true;  // from here on a failure unlinks
    impl->writable = true;
    if (Status taken = take_pages(object.get_mapping_handle().handle, name, bytes); !taken.ok())
      return taken;
    impl->region = bip::mapped_region(object, bip::read_write, 0, bytes, nullptr,
                                      options.prefault ? MAP_POPULATE : bip::default_map_options);
  } catch (const std::exception& error) {
    return failed("cannot create", name, error.what());
  }
  return ShmRegion(std::move(impl));
}

Result<ShmRegion> ShmRegion::open_writable(const std::string& name, std::size_t expected_bytes,
                                           ShmOptions options) {
  if (Status held = hold_shm_space(name); !held.ok()) return held;
  auto impl = std::make_unique<Impl>();
  try {
    const bip::shared_memory_object object(bip::open_only, name.c_str(), bip::read_write);
    if (Status sized = check_size(object, name, expected_bytes); !sized.ok()) return sized;
    const int fd = object.get_mapping_handle().handle;
    if (Status taken = take_pages(fd, name, expected_bytes); !taken.ok()) return taken;
    impl->name = name;
    impl->writable = true;
    impl->region = bip::mapped_region(object, bip::read_write, 0, expected_bytes, nullptr,
                                      options.prefault ? MAP_POPULATE : bip::default_map_options);
  } catch (const std::exception& error) {
    return failed("cannot open", name, error.what());
  }
  return ShmRegion(std::move(impl));
}

Result<ShmRegion> ShmRegion::open_readonly(const std::string& name, std::size_t expected_bytes,
                                           ShmOptions options) {
  auto impl = std::make_unique<Impl>();
  try {
    const bip::shared_memory_object object(bip::open_only, name.c_str(), bip::read_only);
    if (Status sized = check_size(object, name, expected_bytes); !sized.ok()) return sized;
    impl->name = name;
    impl->region = bip::mapped_region(object, bip::read_only, 0, expected_bytes, nullptr,
                                      options.prefault ? MAP_POPULATE : bip::default_map_options);
  } catch (const std::exception& error) {
    return failed("cannot open", name, error.what());
  }
  return ShmRegion(std::move(impl));
}

std::byte* ShmRegion::writable_data() {
  return impl_ != nullptr && impl_->writable ? static_cast<std::byte*>(impl_->region.get_address())
                                             : nullptr;
}

const std::byte* ShmRegion::data() const {
  return impl_ != nullptr ? static_cast<const std::byte*>(impl_->region.get_address()) : nullptr;
}

std::size_t ShmRegion::size() const { return impl_ != nullptr ? impl_->region.get_size() : 0; }

const std::string& ShmRegion::name() const {
  static const std::string kNone;
  return impl_ != nullptr ? impl_->name : kNone;
}

std::string region_name(const std::string& run_dir, const RegionName& owner) {
  return name_in(prefix_of(run_dir), owner);
}

std::vector<RegionName> list_regions(const std::string& run_dir) {
  return regions_of(prefix_of(run_dir));
}

Status name_region(const std::string& name, std::size_t bytes) {
  if (bytes == 0) {
    return invalid("shared memory '" + name + "' of 0 bytes");
  }
  if (Status held = hold_shm_space(name); !held.ok()) return held;
  try {
    bip::shared_memory_object object(bip::open_or_create, name.c_str(), bip::read_write,
                                     bip::permissions(0600));
    object.truncate(static_cast<bip::offset_t>(bytes));
  } catch (const std::exception& error) {
    return failed("cannot create", name, error.what());
  }
  return {};
}

std::optional<std::uint64_t> region_bytes(const std::string& name) {
  struct stat info {};
  if (::stat((std::string(kShmFolder) + "/" + name).c_str(), &info) != 0) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

bool unlink_region(const std::string& name) {
  return bip::shared_memory_object::remove(name.c_str());
}

int unlink_dead_regions(const std::string& run_dir, bool leased) {
  int count = 0;
  for (const RegionName& owner : list_regions(run_dir)) {
    if ((leased || !owner.leased) && !process_alive(owner.pid, owner.pid_start) &&
        unlink_region(region_name(run_dir, owner))) {
      ++count;
    }
  }
  const std::string own = shm_space(run_dir);
  sweep_free_spaces([&](const std::string& space) {
    const std::string prefix = space + "-";
    bool empty = true;
    for (const RegionName& left : regions_of(prefix)) {
      if (space == own && left.leased && !leased) {
        empty = false;
      } else if (unlink_region(name_in(prefix, left)) && space == own) {
        ++count;
      }
    }
    return empty;
  });
  return count;
}

int unlink_predecessors(const std::string& run_dir, const std::string& worker, AllocationId own) {
  int count = 0;
  for (const RegionName& owner : list_regions(run_dir)) {
    if (owner.worker == worker && owner.allocation != own &&
        unlink_region(region_name(run_dir, owner))) {
      ++count;
    }
  }
  return count;
}

}  // namespace baton
