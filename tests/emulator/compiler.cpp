// libnvrtc.so of a pretended GPU: programs are rewritten to C++ and compiled by the C++ compiler into a folder of
// shared libraries, each named after all that went into it, so that it is compiled once. The "machine code" is its path.
#include "rewrite.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <fcntl.h>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace fs = std::filesystem;

namespace {

constexpr int COMPILATION_FAILED = 6;
const fs::path here = EMULATOR_SOURCES, modules = EMULATOR_MODULES;

struct Program {
    std::string name, text, log;
    std::vector<std::pair<std::string, std::string>> headers;
    fs::path module;
};

std::string contents(const fs::path &path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

std::string name_of(const std::string &all) {
    char name[24];
    snprintf(name, sizeof name, "%016zx", std::hash<std::string>()(all));
    return name;
}

// Other threads and processes see a file whole or not at all.
void write(const fs::path &path, const std::string &text) {
    fs::path unfinished = path.string() + "." + std::to_string(gettid());
    std::ofstream(unfinished) << text;
    fs::rename(unfinished, path);
}

int run(std::vector<std::string> command, const fs::path &log) {
    std::vector<char *> arguments;
    for (std::string &argument : command)
        arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    pid_t child;
    int status = -1;
    if (posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ) == 0)
        waitpid(child, &status, 0);
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

std::string module_text(const Program &program) {
    std::string kernel = program.name.substr(0, program.name.find('.'));
    return "#include \"ptx90.h\"\n#line 1 \"" + program.name + "\"\n" + rewrite(program.text) +
           "\nextern \"C\" void emulator_kernel(void **parameters) { call(" + kernel +
           ", parameters); }\n";
}

// The folder of the program's headers, rewritten.
fs::path header_folder(const Program &program) {
    std::string all;
    for (auto &[name, text] : program.headers)
        all += name + text;
    for (const char *name : {"emulator.h", "cuda_language.h", "ptx.h", "ptx90.h", "rewrite.cpp"})
        all += contents(here / name);
    all += EMULATOR_COMPILER + contents(EMULATOR_FLAGS) + contents(EMULATOR_LIBRARY);
    fs::path folder = modules / name_of(all);
    fs::create_directories(folder);
    for (auto &[name, text] : program.headers)
        if (!fs::exists(folder / name)) write(folder / name, rewrite(text));
    return folder;
}

bool compile(Program &program, const std::vector<std::string> &defines) {
    fs::path folder = header_folder(program);
    std::string all = program.text;
    for (const std::string &define : defines)
        all += define;
    fs::path base = folder / (program.name + "-" + name_of(all));
    program.module = base.string() + ".so";
    if (fs::exists(program.module)) return true;
    fs::path source = base.string() + ".cpp", log = base.string() + ".log";
    fs::path unfinished = base.string() + "." + std::to_string(gettid());
    if (!fs::exists(source)) write(source, module_text(program));
    // Linked by itself: the compiler's driver would take ten times as long, for start files that no module needs.
    fs::path object = unfinished.string() + ".o";
    std::vector<std::string> command = {
        EMULATOR_COMPILER, "@" EMULATOR_FLAGS, "-c", "-o", object, source};
    command.insert(command.end(), defines.begin(), defines.end());
    int status = run(command, log);
    if (!status)
        status = run({EMULATOR_LINKER, "-shared", "-o", unfinished, object, EMULATOR_LIBRARY}, log);
    fs::remove(object);
    program.log = contents(log);
    if (status) return false;
    fs::rename(unfinished, program.module);
    return true;
}

} // namespace

extern "C" {

// No version of NVRTC: a key of the kernel cache never means a real kernel and a pretended one.
int nvrtcVersion(int *major, int *minor) {
    *major = *minor = 0;
    return 0;
}

int nvrtcCreateProgram(void **created, const char *text, const char *name, int count,
                       const char *const *headers, const char *const *names) {
    Program *program = new Program{name, text, "", {}, {}};
    for (int i = 0; i < count; i++)
        program->headers.emplace_back(names[i], headers[i]);
    *created = program;
    return 0;
}

int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    std::vector<std::string> defines;
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "-D", 2) == 0) defines.push_back(options[i]);
    try {
        return compile(*(Program *)program, defines) ? 0 : COMPILATION_FAILED;
    } catch (const std::exception &error) {
        ((Program *)program)->log = error.what();
        return COMPILATION_FAILED;
    }
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    *bytes = ((Program *)program)->log.size() + 1;
    return 0;
}
int nvrtcGetProgramLog(void *program, char *log) {
    strcpy(log, ((Program *)program)->log.c_str());
    return 0;
}
int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    *bytes = ((Program *)program)->module.string().size() + 1;
    return 0;
}
int nvrtcGetCUBIN(void *program, char *code) {
    strcpy(code, ((Program *)program)->module.c_str());
    return 0;
}
int nvrtcDestroyProgram(void **program) {
    delete (Program *)*program;
    *program = nullptr;
    return 0;
}
const char *nvrtcGetErrorString(int result) {
    return result ? "the C++ compiler refused" : "no error";
}
}
