/* Windows 10 and later. Names are passed to the system as UTF-16, so that they do not depend on the code page. Files are
 * opened so that other processes may rename and remove them, as on POSIX systems. */
#include "os.h"

#include "thread.h"

#include <windows.h>

#include <aclapi.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <sddl.h>
#include <string.h>

/* The last system error as errno, for texts. */
static int fail(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND: errno = ENOENT; break;
    case ERROR_PATH_NOT_FOUND: errno = ENOTDIR; break;
    case ERROR_ACCESS_DENIED: errno = EACCES; break;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: errno = EEXIST; break;
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION: errno = EWOULDBLOCK; break;
    case ERROR_DISK_FULL: errno = ENOSPC; break;
    case ERROR_INVALID_NAME:
    case ERROR_NO_UNICODE_TRANSLATION: errno = EINVAL; break;
    default: errno = EIO;
    }
    return -1;
}

/* ---- memory and processors ---- */

void *nh_os_allocate(size_t bytes) {
    return _aligned_malloc(bytes, NH_ALIGNMENT);
}

void nh_os_release(void *memory) {
    _aligned_free(memory);
}

int32_t nh_os_cpus(void) {
    const DWORD active = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return active ? (int32_t)active : 1;
}

/* The masks are zero for a process that spans several groups of 64 processors; it may use all processors. */
int32_t nh_os_usable_cpus(void) {
    DWORD_PTR process = 0, machine;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &machine)) return 1;
    return process ? __builtin_popcountll(process) : nh_os_cpus();
}

bool nh_os_is_bound(void) {
    return nh_os_usable_cpus() < nh_os_cpus();
}

void nh_os_cpu_name(char *name, size_t bytes) {
    char found[96];
    DWORD size = sizeof found;
    if (!RegGetValueA(HKEY_LOCAL_MACHINE, "HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0",
                      "ProcessorNameString", RRF_RT_REG_SZ, NULL, found, &size))
        snprintf(name, bytes, "%.80s", found);
}

/* ---- threads and processes ---- */

/* Windows has no signals that the library's threads could take from the application's. */
int nh_thread_create(pthread_t *thread, void *(*body)(void *argument), void *argument) {
    return pthread_create(thread, NULL, body, argument);
}

int nh_os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
    (void)before, (void)parent, (void)child;
    return 0;
}

/* ---- names ---- */

struct wide {
    wchar_t text[NH_PATH_BYTES];
};

static bool widen(const char *text, struct wide *wide) {
    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide->text, NH_PATH_BYTES) >
           0;
}

static bool narrow(const wchar_t *wide, char *text, size_t bytes) {
    return WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, (int)bytes, NULL, NULL) > 0;
}

static HANDLE handle_of(int file) {
    return (HANDLE)_get_osfhandle(file);
}

/* Writes the path of a name in an open folder or, with NH_NO_FOLDER, the name itself, which is a path. */
static bool locate(int folder, const char *name, struct wide *path) {
    struct wide last;
    if (folder == NH_NO_FOLDER) return widen(name, path);
    DWORD length = GetFinalPathNameByHandleW(handle_of(folder), path->text, NH_PATH_BYTES, 0);
    if (!length || length >= NH_PATH_BYTES || !widen(name, &last)) return false;
    return swprintf(path->text + length, NH_PATH_BYTES - length, L"\\%ls", last.text) > 0;
}

/* ---- environment ---- */

const char *nh_os_environment(const char *variable, char room[NH_PATH_BYTES]) {
    struct wide name, value;
    if (!widen(variable, &name)) return NULL;
    SetLastError(ERROR_SUCCESS);
    DWORD length = GetEnvironmentVariableW(name.text, value.text, NH_PATH_BYTES);
    if (length >= NH_PATH_BYTES || (!length && GetLastError())) return NULL;
    value.text[length] = L'\0';
    return narrow(value.text, room, NH_PATH_BYTES) ? room : NULL;
}

int nh_os_cache_folder(char path[NH_PATH_BYTES]) {
    char room[NH_PATH_BYTES];
    const char *base = nh_os_environment("LOCALAPPDATA", room);
    if (base && *base) return snprintf(path, NH_PATH_BYTES, "%s/nhood/cache", base);
    *path = '\0';
    return 0;
}

const char *nh_os_no_cache_folder(void) {
    return "LOCALAPPDATA is not set";
}

const char *nh_os_home(char room[NH_PATH_BYTES]) {
    const char *home = nh_os_environment("USERPROFILE", room);
    return home && *home ? home : NULL;
}

/* ---- shared libraries ---- */

/* Libraries are never searched for in the current folder or in $PATH, where others may put files. */
void *nh_os_library_open(const char *path) {
    struct wide given, full;
    DWORD flags = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
    if (!widen(path, &given)) return NULL;
    if (!strpbrk(path, "/\\")) return LoadLibraryExW(given.text, NULL, flags);
    DWORD length = GetFullPathNameW(given.text, NH_PATH_BYTES, full.text, NULL);
    if (!length || length >= NH_PATH_BYTES) return NULL;
    return LoadLibraryExW(full.text, NULL, flags | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR);
}

void *nh_os_library_loaded(const char *path) {
    struct wide name;
    HMODULE module = NULL;
    return widen(path, &name) && GetModuleHandleExW(0, name.text, &module) ? module : NULL;
}

void *nh_os_library_symbol(void *library, const char *name) {
    FARPROC found = GetProcAddress(library, name);
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
}

void nh_os_library_close(void *library) {
    FreeLibrary(library);
}

const char *nh_os_library_error(void) {
    static _Thread_local char text[256];
    DWORD error = GetLastError();
    if (!FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, error, 0,
                        text, sizeof text, NULL))
        snprintf(text, sizeof text, "system error %lu", error);
    text[strcspn(text, "\r\n")] = '\0';
    return error ? text : NULL;
}

bool nh_os_library_path(const void *address, char *path, size_t bytes) {
    struct wide name;
    HMODULE module;
    if (!GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS |
                                GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                            address, &module))
        return false;
    DWORD length = GetModuleFileNameW(module, name.text, NH_PATH_BYTES);
    if (!length || length >= NH_PATH_BYTES || !narrow(name.text, path, bytes)) return false;
    for (char *at = path; *at; at++)
        if (*at == '\\') *at = '/';
    return true;
}

/* ---- files ---- */

static int descriptor(HANDLE handle) {
    if (handle == INVALID_HANDLE_VALUE) return fail();
    int file = _open_osfhandle((intptr_t)handle, _O_BINARY | _O_NOINHERIT);
    if (file < 0) CloseHandle(handle);
    return file;
}

static HANDLE open_handle(const struct wide *path, DWORD access, DWORD disposition, DWORD flags) {
    return CreateFileW(path->text, access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                       NULL, disposition, flags, NULL);
}

/* NH_OPEN_READ_OWN opens a link itself instead of the file that it points to; reading an entry from it fails. */
int nh_os_open(int folder, const char *name, enum nh_open_mode mode) {
    static const struct {
        DWORD access, disposition, flags;
    } modes[] = {[NH_OPEN_READ] = {GENERIC_READ, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL},
                 [NH_OPEN_READ_OWN] = {GENERIC_READ | FILE_WRITE_ATTRIBUTES, OPEN_EXISTING,
                                       FILE_FLAG_OPEN_REPARSE_POINT},
                 [NH_OPEN_NEW] = {GENERIC_WRITE, CREATE_NEW, FILE_ATTRIBUTE_NORMAL},
                 [NH_OPEN_NEW_OWN] = {GENERIC_WRITE, CREATE_NEW, FILE_ATTRIBUTE_NORMAL}};
    struct wide path;
    if (!locate(folder, name, &path)) return fail();
    return descriptor(
        open_handle(&path, modes[mode].access, modes[mode].disposition, modes[mode].flags));
}

int64_t nh_os_read_at(int file, void *data, size_t bytes, uint64_t offset) {
    OVERLAPPED place = {.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};
    DWORD read = 0, most = bytes < MAXINT32 ? (DWORD)bytes : MAXINT32;
    if (ReadFile(handle_of(file), data, most, &read, &place)) return read;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : fail();
}

bool nh_os_flush(int file) {
    return _commit(file) == 0;
}

bool nh_os_touch(int file) {
    FILETIME now;
    GetSystemTimeAsFileTime(&now);
    return SetFileTime(handle_of(file), NULL, NULL, &now) || fail() == 0;
}

/* MoveFileExW fails while another process has the old file open. Virus scanners do that for moments, so it is tried again
 * after the waiting times that git uses (compat/mingw.c). */
bool nh_os_rename(int folder, const char *from, const char *to) {
    static const DWORD wait_ms[] = {0, 1, 10, 20, 40};
    struct wide old, new;
    if (!locate(folder, from, &old) || !locate(folder, to, &new)) return fail() == 0;
    for (size_t i = 0; i < sizeof wait_ms / sizeof *wait_ms; i++) {
        Sleep(wait_ms[i]);
        if (MoveFileExW(old.text, new.text, MOVEFILE_REPLACE_EXISTING)) return true;
    }
    return fail() == 0;
}

bool nh_os_remove(int folder, const char *name) {
    struct wide path;
    return (locate(folder, name, &path) && DeleteFileW(path.text)) || fail() == 0;
}

/* ---- folders ---- */

bool nh_os_is_separator(char byte) {
    return byte == '/' || byte == '\\';
}

/* Gives full access to the owner, the system and administrators, and to no one else; files created in the folder inherit
 * this. Python's os.mkdir does the same for mode 0700. */
bool nh_os_make_folder(const char *path) {
    struct wide name;
    SECURITY_ATTRIBUTES attributes = {.nLength = sizeof attributes};
    if (!widen(path, &name)) return fail() == 0;
    DWORD facts = GetFileAttributesW(name.text);
    if (facts != INVALID_FILE_ATTRIBUTES) return true;
    if (!ConvertStringSecurityDescriptorToSecurityDescriptorW(
            L"D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW)", SDDL_REVISION_1,
            &attributes.lpSecurityDescriptor, NULL))
        return fail() == 0;
    bool made = CreateDirectoryW(name.text, &attributes) ||
                GetLastError() == ERROR_ALREADY_EXISTS || fail() == 0;
    LocalFree(attributes.lpSecurityDescriptor);
    return made;
}

int nh_os_open_folder(const char *path) {
    struct wide name;
    BY_HANDLE_FILE_INFORMATION facts;
    if (!widen(path, &name)) return fail();
    HANDLE handle = open_handle(&name, FILE_LIST_DIRECTORY | FILE_READ_ATTRIBUTES | READ_CONTROL,
                                OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
    if (handle != INVALID_HANDLE_VALUE && GetFileInformationByHandle(handle, &facts) &&
        !(facts.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY)) {
        CloseHandle(handle);
        errno = ENOTDIR;
        return -1;
    }
    return descriptor(handle);
}

/* Whether the SID is this process's user, or the default owner of what the process creates (it may be the administrators'
 * group). */
static bool is_own(PSID sid) {
    union {
        TOKEN_USER user;
        TOKEN_OWNER owner;
        char room[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
    } token;
    DWORD bytes;
    HANDLE process = GetCurrentProcessToken();
    return (GetTokenInformation(process, TokenUser, &token, sizeof token, &bytes) &&
            EqualSid(sid, token.user.User.Sid)) ||
           (GetTokenInformation(process, TokenOwner, &token, sizeof token, &bytes) &&
            EqualSid(sid, token.owner.Owner));
}

/* Whether an access control entry lets anyone do more than read who is neither this user nor a trusted account, which may
 * do everything anyway. */
static bool lets_others_write(const ACE_HEADER *header) {
    static const WELL_KNOWN_SID_TYPE trusted[] = {WinLocalSystemSid, WinBuiltinAdministratorsSid,
                                                  WinCreatorOwnerSid, WinCreatorOwnerRightsSid};
    const DWORD harmless =
        FILE_GENERIC_READ | FILE_GENERIC_EXECUTE | GENERIC_READ | GENERIC_EXECUTE;
    if (header->AceType == ACCESS_DENIED_ACE_TYPE) return false;
    if (header->AceType != ACCESS_ALLOWED_ACE_TYPE) return true;
    ACCESS_ALLOWED_ACE entry;
    memcpy(&entry, header, sizeof entry);
    PSID sid = (PSID)((uintptr_t)header + offsetof(ACCESS_ALLOWED_ACE, SidStart));
    if (!(entry.Mask & ~harmless) || is_own(sid)) return false;
    for (size_t i = 0; i < sizeof trusted / sizeof *trusted; i++)
        if (IsWellKnownSid(sid, trusted[i])) return false;
    return true;
}

bool nh_os_folder_is_own(int folder, char *reason, size_t bytes) {
    PSID owner;
    PACL list;
    PSECURITY_DESCRIPTOR descriptor;
    DWORD error = GetSecurityInfo(handle_of(folder), SE_FILE_OBJECT,
                                  OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION, &owner,
                                  NULL, &list, NULL, &descriptor);
    if (error) {
        snprintf(reason, bytes, "its owner is not known, system error %lu", error);
        return false;
    }
    bool own = owner && is_own(owner), closed = list != NULL;
    for (DWORD i = 0; closed && i < list->AceCount; i++) {
        void *entry;
        closed = GetAce(list, i, &entry) && !lets_others_write(entry);
    }
    LocalFree(descriptor);
    snprintf(reason, bytes, "it must be of this user and writable by no one else");
    return own && closed;
}

/* A FILETIME counts units of 100 ns. */
static int64_t nanoseconds(FILETIME time) {
    return 100 * ((int64_t)time.dwHighDateTime << 32 | time.dwLowDateTime);
}

int64_t nh_os_file_clock_ns(void) {
    FILETIME now;
    GetSystemTimeAsFileTime(&now);
    return nanoseconds(now);
}

bool nh_os_scan_folder(int folder, void (*visit)(void *arg, const struct nh_folder_entry *entry),
                       void *arg) {
    struct wide pattern;
    WIN32_FIND_DATAW found;
    char name[4 * MAX_PATH];
    if (!locate(folder, "*", &pattern)) return false;
    HANDLE search = FindFirstFileW(pattern.text, &found);
    if (search == INVALID_HANDLE_VALUE) return false;
    do {
        int64_t size = (int64_t)found.nFileSizeHigh << 32 | found.nFileSizeLow;
        if (narrow(found.cFileName, name, sizeof name))
            visit(arg, &(struct nh_folder_entry){name, size, nanoseconds(found.ftLastWriteTime)});
    } while (FindNextFileW(search, &found));
    FindClose(search);
    return true;
}

/* ---- locks ---- */

/* The lock's file is never removed: while Windows removes a file, opening it fails with the same error as a lack of
 * permission. */
int nh_os_lock(const char *name) {
    struct wide path;
    OVERLAPPED start = {.Offset = 0};
    if (!widen(name, &path)) return fail();
    int file = descriptor(
        open_handle(&path, GENERIC_READ | GENERIC_WRITE, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL));
    if (file < 0 || LockFileEx(handle_of(file), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY,
                               0, 1, 0, &start))
        return file;
    fail();
    int error = errno;
    close(file);
    errno = error;
    return -1;
}

void nh_os_unlock(int lock, const char *name) {
    (void)name;
    if (lock >= 0) close(lock);
}
