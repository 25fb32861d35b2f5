/* nhood completion: prints what completes the tool's commands, options and their values in a shell, by the tables that parse
 * them. */
#include "commands.h"
#include "message.h"
#include "nhood.h"
#include "options.h"

#include <stdio.h>
#include <string.h>

static void print_commands(usage_visitor *print) {
    options_visit(print);
    for (const struct command *command = commands; command->name; command++)
        command->run(0, NULL);
    options_visit(NULL);
}

static void each_option(const struct usage *usage,
                        void (*print)(const struct usage *usage, const struct option *option)) {
    for (const struct option *option = usage->own; option->name; option++)
        print(usage, option);
    for (const struct option *option = usage->shared; option->name; option++)
        print(usage, option);
}

/* The row that ends the command's own table: what it takes beside options. */
static const struct option *operands(const struct usage *usage) {
    const struct option *option = usage->own;
    while (option->name)
        option++;
    return option;
}

static bool takes(const struct option *option, const char *kind) {
    return option->argument && strcmp(option->argument, kind) == 0;
}

/* Prints text, with a backslash before each of these characters. */
static void print_escaped(const char *text, const char *special) {
    for (; *text; text++) {
        if (strchr(special, *text)) putchar('\\');
        putchar(*text);
    }
}

/* The words that an option takes, between spaces. */
static void print_values(const struct option *option, const char *special) {
    const char *solver;
    if (!option->name || strcmp(option->name, "solver") != 0) {
        print_escaped(option->values ? option->values : "", special);
        return;
    }
    for (int32_t i = 0; (solver = nhood_solver_name(i, NULL)); i++)
        printf("%s%s", i ? " " : "", solver);
}

static bool has_values(const struct option *option) {
    return option->values || (option->name && strcmp(option->name, "solver") == 0);
}

/* ---- bash ---- */

static void print_bash_value(const struct usage *usage, const struct option *option) {
    (void)usage;
    if (option->flag) return;
    printf("        --%s) ", option->name);
    if (takes(option, "FILE") || takes(option, "DIR")) {
        printf("%s=1", takes(option, "DIR") ? "folders" : "files");
    } else {
        printf("words='");
        print_values(option, "");
        printf("'");
    }
    printf(" ;;\n");
}

static void print_bash_name(const struct usage *usage, const struct option *option) {
    (void)usage;
    printf("--%s ", option->name);
}

static void print_bash_command(const struct usage *usage) {
    printf("    %s)\n        options='", usage->command);
    each_option(usage, print_bash_name);
    printf("--help'\n        case $before in\n");
    each_option(usage, print_bash_value);
    printf("        *)\n            words='");
    print_values(operands(usage), "");
    printf("'\n");
    if (takes(operands(usage), "FILE")) printf("            files=1\n");
    printf("            [[ $word != -* ]] || words=$options files=\n            ;;\n"
           "        esac\n        ;;\n");
}

static void print_bash(void) {
    printf("# Completes nhood's commands in bash. Printed by `nhood completion bash`.\n"
           "_nhood() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local command= options= words= files= folders=\n"
           "    # --option=value is three words to bash.\n"
           "    if [[ $word == = ]]; then\n"
           "        word=\n"
           "    elif [[ $before == = ]]; then\n"
           "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
           "    fi\n"
           "    ((COMP_CWORD == 1)) || command=${COMP_WORDS[1]}\n"
           "    case $command in\n"
           "    '') words='");
    for (const struct command *command = commands; command->name; command++)
        printf("%s ", command->name);
    printf("--help --version' ;;\n");
    print_commands(print_bash_command);
    printf("    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "    if [[ $files || $folders ]]; then\n"
           "        compopt -o filenames\n"
           "        COMPREPLY+=($(compgen ${files:+-f} ${folders:+-d} -- \"$word\"))\n"
           "    fi\n"
           "}\n"
           "complete -F _nhood nhood\n");
}

/* ---- zsh ---- */

/* `'` within a quoted text of a shell, and what ends a description. */
static void print_zsh_text(const char *text) {
    for (; *text; text++) {
        if (*text == '\'')
            printf("'\\''");
        else if (strchr("[]\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text == '\n' ? ' ' : *text);
    }
}

static void print_zsh_action(const struct option *option) {
    if (takes(option, "FILE")) {
        printf("_files");
    } else if (takes(option, "DIR")) {
        printf("_files -/");
    } else if (has_values(option)) {
        printf("(");
        print_values(option, ":");
        printf(")");
    } else {
        printf(" ");
    }
}

static void print_zsh_option(const struct usage *usage, const struct option *option) {
    (void)usage;
    printf(" \\\n            '--%s%s[", option->name, option->flag ? "" : "=");
    print_zsh_text(option->help);
    printf("]");
    if (!option->flag) {
        printf(":%s:", option->argument);
        print_zsh_action(option);
    }
    printf("'");
}

static void print_zsh_command(const struct usage *usage) {
    printf("    %s)\n        _arguments", usage->command);
    each_option(usage, print_zsh_option);
    printf(" \\\n            '--help[print help]'");
    const struct option *others = operands(usage);
    if (has_values(others)) {
        printf(" \\\n            '1:what:(");
        print_values(others, ":");
        printf(")'");
    }
    if (takes(others, "FILE")) printf(" \\\n            '*:file:_files'");
    printf("\n        ;;\n");
}

static void print_zsh(void) {
    printf("#compdef nhood\n"
           "# Completes nhood's commands in zsh. Printed by `nhood completion zsh`.\n"
           "_nhood() {\n"
           "    local curcontext=$curcontext state line\n"
           "    local -a commands\n"
           "    commands=(");
    for (const struct command *command = commands; command->name; command++) {
        printf("\n        '%s:", command->name);
        print_zsh_text(command->summary);
        printf("'");
    }
    printf("\n    )\n"
           "    _arguments -C '1: :->command' '*:: :->argument' '(- :)--help[print help]' \\\n"
           "        '(- :)--version[print the version]'\n"
           "    case $state in\n"
           "    command) _describe command commands ;;\n"
           "    argument)\n"
           "    case $words[1] in\n");
    print_commands(print_zsh_command);
    printf(
        "    esac\n"
        "    ;;\n"
        "    esac\n"
        "}\n"
        "if [ \"$funcstack[1]\" = _nhood ]; then _nhood \"$@\"; else compdef _nhood nhood; fi\n");
}

/* ---- fish ---- */

static void print_fish_text(const char *text) {
    putchar('\'');
    print_escaped(text, "'\\");
    putchar('\'');
}

static void print_fish_action(const struct option *option) {
    if (takes(option, "FILE")) {
        printf(" -r -F");
    } else if (takes(option, "DIR")) {
        printf(" -x -a '(__fish_complete_directories)'");
    } else {
        printf(" -x -a '");
        print_values(option, "");
        printf("'");
    }
}

static void print_fish_option(const struct usage *usage, const struct option *option) {
    printf("complete -c nhood -n '__fish_seen_subcommand_from %s' -l %s", usage->command,
           option->name);
    if (!option->flag) print_fish_action(option);
    printf(" -d ");
    print_fish_text(option->help);
    printf("\n");
}

static void print_fish_command(const struct usage *usage) {
    each_option(usage, print_fish_option);
    const struct option *others = operands(usage);
    if (!has_values(others) && !others->argument) return;
    printf("complete -c nhood -n '__fish_seen_subcommand_from %s'", usage->command);
    if (has_values(others)) {
        printf(" -a '");
        print_values(others, "");
        printf("'");
    }
    printf("%s\n", takes(others, "FILE") ? " -F" : "");
}

static void print_fish(void) {
    printf("# Completes nhood's commands in fish. Printed by `nhood completion fish`.\n"
           "complete -c nhood -f\n"
           "complete -c nhood -l help -d 'print help'\n"
           "complete -c nhood -n __fish_use_subcommand -l version -d 'print the version'\n");
    for (const struct command *command = commands; command->name; command++) {
        printf("complete -c nhood -n __fish_use_subcommand -a %s -d ", command->name);
        print_fish_text(command->summary);
        printf("\n");
    }
    print_commands(print_fish_command);
}

int cmd_completion(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    enum { SHELLS = sizeof shells / sizeof shells[0] };
    const struct option none[] = {{.name = NULL}};
    const struct option options[] = {{.name = NULL, .values = "bash zsh fish"}};
    const struct usage usage = {
        "completion", "bash|zsh|fish",
        "Prints what completes commands, options and their values in a shell. Packages install "
        "it;\n"
        "otherwise the shell reads it when it starts:\n"
        "  eval \"$(nhood completion bash)\"           in ~/.bashrc\n"
        "  eval \"$(nhood completion zsh)\"            in ~/.zshrc, after compinit\n"
        "  nhood completion fish | source            in ~/.config/fish/config.fish",
        options, none};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    for (int i = 0; count == 1 && i < SHELLS; i++) {
        if (strcmp(argv[0], shells[i].name) != 0) continue;
        shells[i].print();
        return 0;
    }
    return complain(EXIT_USAGE, "completion: name one of bash, zsh, fish");
}
