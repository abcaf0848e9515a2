#include "ipc/sealed_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace baton {
namespace {

UnsealedMemory filled() {
  auto memory = UnsealedMemory::create(1U << 20U);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  std::memset(memory.value().data(), 7, 5000);
  return std::move(memory).value();
}

TEST(SealedMemory, HoldsWhatWasWrittenAndNoMore) {
  const auto sealed = UnsealedMemory::seal(filled(), 5000);
  ASSERT_TRUE(sealed.ok()) << sealed.status().message();
  EXPECT_EQ(sealed.value().size(), 5000U);
  EXPECT_EQ(sealed.value().data()[0], std::byte{7});
  EXPECT_EQ(sealed.value().data()[4999], std::byte{7});
  EXPECT_EQ(sealed_bytes(sealed.value().fd()), 5000U);
}

TEST(SealedMemory, NobodyCanWriteToItAgain) {
  const auto sealed = UnsealedMemory::seal(filled(), 5000);
  ASSERT_TRUE(sealed.ok());
  const int fd = sealed.value().fd();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(::pwrite(fd, "x", 1, 0), 1);
  EXPECT_NE(::ftruncate(fd, 1), 0);
  EXPECT_NE(::ftruncate(fd, 1 << 20), 0);
  // Who insists changes a copy of his own.
  const auto other = SealedMemory::map(UniqueFd(::dup(fd)));
  ASSERT_TRUE(other.ok());
  auto* own = const_cast<std::byte*>(other.value().data());
  ASSERT_EQ(::mprotect(own, 4096, PROT_READ | PROT_WRITE), 0);
  own[0] = std::byte{9};
  EXPECT_EQ(sealed.value().data()[0], std::byte{7});
}

TEST(SealedMemory, TwoMappingsHaveOneNumberAndOthersAnotherOne) {
  const auto first = UnsealedMemory::seal(filled(), 5000);
  const auto second = UnsealedMemory::seal(filled(), 5000);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto again = SealedMemory::map(UniqueFd(::dup(first.value().fd())));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value().id(), first.value().id());
  EXPECT_NE(second.value().id(), first.value().id());
  EXPECT_NE(first.value().id(), 0U);
}

TEST(SealedMemory, WhatIsNotSealedIsNotMapped) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_FALSE(SealedMemory::map(UniqueFd(pipe[0])).ok());
  ::close(pipe[1]);
  UniqueFd open(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 4096), 0);
  EXPECT_FALSE(sealed_bytes(open.get()));
  ASSERT_EQ(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
  EXPECT_FALSE(sealed_bytes(open.get())) << "its maker could still make it larger";
  EXPECT_FALSE(SealedMemory::map(std::move(open)).ok());
  EXPECT_FALSE(UnsealedMemory::seal(filled(), 2U << 20U).ok()) << "more than there is";
}

}  // namespace
}  // namespace baton
