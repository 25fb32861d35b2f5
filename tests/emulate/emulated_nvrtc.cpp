/* A libnvrtc that compiles kernels for the CPU: with the system's C++ compiler, into a shared library that
 * emulated_cuda.cpp loads. Kernels that use instructions which have no stand-in (wgmma, tensor maps) do not compile. */
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

struct program {
    std::map<std::string, std::string> file;
    std::string name, log, code;
};

enum { SUCCESS = 0, FAILURE = 6 };

std::string read_file(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
}

/* asm("cvt.x.y ..;" : "=f"(to) : "h"(from)) becomes ptx_cvt_x_y(to, from), dynamic shared memory a pointer, and other
 * shared memory a static variable: all threads of the process's one block at a time see the same. */
std::string translate(const std::string &text) {
    static const std::regex conversion("asm\\(\"(cvt[\\w.]*)[^\"]*\"\\s*:([^;]*)\\);");
    static const std::regex operand("\"=?\\w\"\\((\\w+)\\)");
    static const std::regex shared(
        "extern __shared__\\s+(?:__align__\\(\\w+\\)\\s+)?([\\w ]+?)\\s*(\\w+)\\[\\];");
    static const std::regex own_shared("(?:static\\s+)?__shared__(?:\\s+__align__\\(\\w+\\))?");
    std::string rest = std::regex_replace(text, shared, "$1 *const $2 = ($1 *)emulated::shared;");
    rest = std::regex_replace(rest, own_shared, "static");
    std::string result;
    std::smatch match;
    while (std::regex_search(rest, match, conversion)) {
        std::string call = "ptx_" + match[1].str(), operands = match[2].str(), comma = "(";
        std::replace(call.begin(), call.end(), '.', '_');
        for (std::sregex_iterator o(operands.begin(), operands.end(), operand), end; o != end;
             ++o) {
            call += comma + (*o)[1].str();
            comma = ", ";
        }
        result += match.prefix().str() + call + ");";
        rest = match.suffix();
    }
    return result + rest;
}

void write_sources(const program &p, const std::string &folder) {
    for (const auto &[name, text] : p.file)
        if (name != "mma.cuh") std::ofstream(folder + "/" + name) << translate(text);
    std::string kernel = p.name.substr(0, p.name.find('.'));
    std::ofstream(folder + "/unit.cpp")
        << "#include \"" EMULATED_FOLDER "/runtime.h\"\n#include \"" EMULATED_FOLDER "/mma.cuh\"\n"
        << "#include \"" << p.name << "\"\n"
        << "extern \"C\" void emulated_entry(void **parameters, const unsigned grid[3], unsigned "
           "threads) {\n"
        << "    emulated_launch(" << kernel << ", parameters, grid, threads);\n}\n"
        << "extern \"C\" const char emulated_name[] = \"" << kernel << "\";\n";
}

} // namespace

extern "C" {

int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 0;
    return SUCCESS;
}

int nvrtcCreateProgram(void **created, const char *text, const char *name, int headers,
                       const char *const *header_text, const char *const *header_name) {
    program *p = new program;
    p->name = name;
    p->file[name] = text;
    for (int i = 0; i < headers; i++)
        p->file[header_name[i]] = header_text[i];
    *created = p;
    return SUCCESS;
}

int nvrtcCompileProgram(void *given, int options, const char *const *option) {
    program *p = (program *)given;
    char folder[] = "/tmp/nhood-emulated-XXXXXX";
    if (!mkdtemp(folder)) return FAILURE;
    std::string at = folder;
    write_sources(*p, at);
    std::string command = EMULATED_COMPILER
                          " -std=c++17 -O1 -w -fPIC -shared -fno-strict-aliasing -I" EMULATED_FOLDER
                          " -I" +
                          at;
    for (int i = 0; i < options; i++)
        if (strncmp(option[i], "-D", 2) == 0) command += std::string(" ") + option[i];
    command += " -o " + at + "/unit.so " + at + "/unit.cpp > " + at + "/log 2>&1";
    int result = system(command.c_str());
    p->log = read_file(at + "/log");
    p->code = read_file(at + "/unit.so");
    if (system(("rm -rf " + at).c_str())) return FAILURE;
    return result ? FAILURE : SUCCESS;
}

int nvrtcGetProgramLogSize(void *given, size_t *bytes) {
    *bytes = ((program *)given)->log.size() + 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(void *given, char *text) {
    strcpy(text, ((program *)given)->log.c_str());
    return SUCCESS;
}

/* The driver is handed code without its length: eight bytes of it come first. */
int nvrtcGetCUBINSize(void *given, size_t *bytes) {
    *bytes = ((program *)given)->code.size() + sizeof(uint64_t);
    return SUCCESS;
}

int nvrtcGetCUBIN(void *given, char *code) {
    const std::string &library = ((program *)given)->code;
    uint64_t bytes = library.size();
    memcpy(code, &bytes, sizeof bytes);
    memcpy(code + sizeof bytes, library.data(), library.size());
    return SUCCESS;
}

int nvrtcDestroyProgram(void **given) {
    delete (program *)*given;
    *given = nullptr;
    return SUCCESS;
}

const char *nvrtcGetErrorString(int result) {
    return result ? "the system's compiler refused" : "no error";
}
}
