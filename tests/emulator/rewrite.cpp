#include "rewrite.h"

#include <cctype>
#include <regex>
#include <vector>

namespace {

// The end of the string literal that begins at `at`.
size_t past_string(const std::string &text, size_t at) {
    for (at++; at < text.size() && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at + 1;
}

// The sections of an asm statement that begins after its parenthesis: template, outputs, inputs, clobbers.
std::vector<std::string> sections(const std::string &text, size_t &at) {
    std::vector<std::string> section(1);
    for (int depth = 1; at < text.size();) {
        size_t next = text[at] == '"' ? past_string(text, at) : at + 1;
        if (text[at] == '(') depth++;
        if (text[at] == ')' && --depth == 0) break;
        if (text[at] == ':' && depth == 1) {
            section.emplace_back();
        } else {
            section.back() += text.substr(at, next - at);
        }
        at = next;
    }
    return section;
}

// The function of a template: its first instruction, modifiers included, that does more than set a predicate.
std::string function_of(const std::string &assembly) {
    static const std::regex instruction("[\\s\"{;]([a-z]\\w*(?:[.:]+\\w+)+)");
    for (std::sregex_iterator i(assembly.begin(), assembly.end(), instruction), end; i != end;
         ++i) {
        std::string name = (*i)[1];
        if (name.rfind("setp", 0) == 0) continue;
        for (char &c : name)
            if (!isalnum((unsigned char)c)) c = '_';
        return "ptx_" + name;
    }
    return "ptx_unknown";
}

std::string call_of(const std::vector<std::string> &section) {
    static const std::regex blank("[\\s\\\\]*");
    std::string call = function_of(section[0]) + "(" + section[0];
    for (size_t i = 1; i < section.size() && i < 3; i++)
        if (!std::regex_match(section[i], blank)) call += ", " + section[i];
    return call + ")";
}

std::string without_asm(const std::string &text) {
    static const std::regex statement("\\basm(?:\\s+volatile)?\\s*\\(");
    std::string result;
    size_t at = 0;
    for (std::smatch match;
         std::regex_search(text.begin() + (long)at, text.end(), match, statement);) {
        result += text.substr(at, (size_t)match.position());
        at += (size_t)(match.position() + match.length());
        result += call_of(sections(text, at));
        at++;
    }
    return result + text.substr(at);
}

} // namespace

std::string rewrite(const std::string &source) {
    static const std::regex constraint("\"[+=]?[a-z]\"\\s*\\(");
    static const std::regex dynamic(
        "extern\\s+__shared__\\s+(?:__align__\\(\\d+\\)\\s*)?([\\w ]+?)\\s*(\\w+)\\[\\];");
    static const std::regex fixed("(?:static\\s+)?__shared__");
    // A name of a type that C++20 knows without the word, and clang from version 16 on.
    static const std::regex alias("(using\\s+\\w+\\s*=\\s*)(\\w+<[^;]*>::type;)");
    std::string text = without_asm(source);
    text = std::regex_replace(text, constraint, "(");
    text = std::regex_replace(text, dynamic, "const emulator::DynamicShared<$1> $2;");
    text = std::regex_replace(text, alias, "$1typename $2");
    return std::regex_replace(text, fixed, "static");
}
