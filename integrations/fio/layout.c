/*
 * Compares fio_places.h with fio's own headers: compiled by `layout` in a folder of fio 3.33's source, outside the tree.
 */
#include "fio.h"
#include "optgroup.h"

#include "fio_places.h"

static int differ;

static void compare(const char *what, unsigned long long ours, unsigned long long fios)
{
	if (ours == fios)
		return;
	printf("%s is %llu here and %llu in fio\n", what, ours, fios);
	differ = 1;
}

#define AT(type, field, place) compare(#type "." #field, place, offsetof(struct type, field));
#define OF(type, size) compare("the size of " #type, size, sizeof(struct type));
#define IS(name, value) compare(#name, value, name);

int main(void)
{
	FIO_OFFSETS(AT)
	FIO_SIZES(OF)
	FIO_JOB_OFFSETS(AT)
	FIO_VALUES(IS)
	if (!differ)
		printf("all as in fio's headers\n");
	return differ;
}
